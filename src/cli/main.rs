//! The command `leasehold`: a lock in front of a command, and the holders of all locks. It uses the public interface of the library only.

mod args;
mod child;
mod doctor;
mod exit;
mod found;
mod held;
mod look;
mod run;
mod signals;
mod terminal;
mod watch;

use std::process::ExitCode;

use args::Command;
use exit::Failure;

fn main() -> ExitCode {
    if let Some(code) = child::become_the_command() {
        return ExitCode::from(code);
    }
    let arguments = match args::parse() {
        Ok(arguments) => arguments,
        Err(code) => return ExitCode::from(code),
    };
    // One thread: the child must be started by the main thread, because it dies with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the settings are valid");
    let (servers, json) = (&arguments.servers, arguments.json);
    let done = runtime.block_on(async {
        match &arguments.command {
            Command::Run(options) => run::run(servers, options).await,
            Command::Status { name } => look::status(servers, name, json).await,
            Command::List { pattern } => look::list(servers, pattern, json).await,
            Command::Watch(options) => watch::watch(servers, options).await,
            Command::Ask { name, reason } => look::ask(servers, (name, reason), json).await,
            Command::Unlock(options) => look::unlock(servers, options).await,
            Command::Doctor => doctor::doctor(servers, json).await,
            Command::Completions { shell } => args::write_completions(*shell),
            Command::Man { folder } => args::write_man_pages(folder),
        }
    });
    ExitCode::from(done.unwrap_or_else(Failure::report))
}
