//! What locks cost and how they share, beside what the same requests cost bare. Prints one table.
//!
//! `cargo bench --bench locks` runs all sections, `cargo bench --bench locks -- NAME…` some. Ratios within one run are
//! what counts; the machine's mood is in both halves.

mod alone;
mod contended;
mod family;
mod far;
mod multi;
mod permits;
mod processes;
#[cfg(feature = "metrics")]
mod recorder;
mod report;
#[allow(dead_code)]
#[path = "../../tests/support/mod.rs"]
mod support;
mod told;
mod trouble;

use std::{future::Future, pin::Pin};

use report::{Outcome, Report};
use support::Server;

type Section = for<'a> fn(&'a Server, &'a mut Report) -> Pin<Box<dyn Future<Output = Outcome<()>> + 'a>>;

// The first measures memory, which what others leave behind would blur.
const SECTIONS: &[(&str, Section)] = &[
    ("waiting", |server, report| Box::pin(contended::many_waiting(server, report))),
    ("uncontended", |server, report| Box::pin(alone::uncontended(server, report))),
    ("blocking", |server, report| Box::pin(alone::blocking(server, report))),
    ("distinct", |server, report| Box::pin(alone::distinct(server, report))),
    ("cluster", |server, report| Box::pin(alone::clustered(server, report))),
    ("held", |server, report| Box::pin(alone::held(server, report))),
    ("told", |server, report| Box::pin(told::told(server, report))),
    ("one-name", |server, report| Box::pin(contended::one_name(server, report))),
    ("hand-over", |server, report| Box::pin(contended::hand_over(server, report))),
    ("processes", |server, report| Box::pin(processes::all(server, report))),
    ("between", |server, report| Box::pin(processes::hand_over(server, report))),
    ("quorum", |server, report| Box::pin(processes::hand_over_by_majority(server, report))),
    ("multi", |server, report| Box::pin(multi::several(server, report))),
    ("readers", |server, report| Box::pin(family::readers(server, report))),
    ("fair", |server, report| Box::pin(family::fair(server, report))),
    ("permits", |server, report| Box::pin(permits::permits(server, report))),
    ("early", |server, report| Box::pin(permits::early(server, report))),
    ("far", |server, report| Box::pin(far::far(server, report))),
    ("cut-off", |server, report| Box::pin(trouble::cut_off(server, report))),
    ("deadlines", |server, report| Box::pin(trouble::deadlines(server, report))),
    // The last: from then on, each client has a recorder.
    #[cfg(feature = "metrics")]
    ("recorder", |server, report| Box::pin(recorder::cost(server, report))),
];

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    if args.first().is_some_and(|arg| arg == "worker") {
        return runtime.block_on(worker(&args[1..]));
    }
    let mut report = Report::default();
    for (name, section) in SECTIONS {
        if args.is_empty() || args.iter().any(|arg| arg == name) {
            let server = Server::start();
            eprintln!("… {name}");
            runtime.block_on(section(&server, &mut report))?;
        }
    }
    report.print();
    Ok(())
}

async fn worker(args: &[String]) -> Outcome<()> {
    match args {
        [kind, rest @ ..] if kind == "several" => multi::worker(rest).await,
        _ => processes::worker(args).await,
    }
}
