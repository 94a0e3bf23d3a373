//! Memory for each held lock.

use crate::{Args, Client, Lock, Outcome, resident};

/// Says `held` when all are, and keeps them for the seconds asked for, so that they are renewed meanwhile.
pub(crate) async fn held<C: Client>(client: &C, args: &Args) -> Outcome<String> {
    let mut warm = client.lock("warm");
    warm.lock().await?;
    warm.unlock().await?;
    let mut held = Vec::with_capacity(args.tasks);
    let before = resident()?;
    for n in 0..args.tasks {
        held.push(client.hold(format!("{}:{n:06}", args.name)).await?);
    }
    println!("held");
    tokio::time::sleep(args.seconds).await;
    let each = (resident()? - before) / args.tasks as f64;
    drop(held);
    Ok(format!(r#""bytes":{each:.0}"#))
}
