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

/// The same for plain threads. They find the server's URL in `client_url`.
#[cfg(feature = "blocking")]
#[allow(dead_code)]
fn run_blocking(example: impl FnOnce(leasehold::blocking::Client) -> leasehold::Result<()>) {
    let server = server::Server::start();
    URL.set(server.url()).expect("one example in a process");
    leasehold::blocking::Client::connect(&server.url()).and_then(example).expect("the example works");
}

#[cfg(feature = "blocking")]
static URL: std::sync::OnceLock<String> = std::sync::OnceLock::new();

#[cfg(feature = "blocking")]
#[allow(dead_code)]
fn client_url() -> &'static str {
    URL.get().expect("the example runs")
}
