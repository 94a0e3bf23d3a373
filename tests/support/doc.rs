// Included by the documentation's examples, so that they run: a client of a private server of their own.

#[allow(dead_code)]
mod server {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/server.rs"));
}

#[allow(dead_code)]
fn run(example: impl AsyncFnOnce(leasehold::Client) -> leasehold::Result<()>) {
    let server = server::Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let result = runtime.block_on(async {
        let client = leasehold::Client::connect(&server.url()).await?;
        example(client).await
    });
    result.expect("the example works");
}
