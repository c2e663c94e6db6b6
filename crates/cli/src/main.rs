//! `baton`: one language model over several machines.

mod args;
mod bar;
mod bench;
mod busy;
mod carrier;
mod cell;
mod chat;
mod check;
mod client;
mod contents;
mod demo;
mod depot;
mod device;
mod doctor;
mod embedded;
#[cfg(feature = "hf")]
mod hub;
mod inspect;
mod loading;
mod local;
mod log;
mod manifest;
mod model;
mod node;
mod nodes;
mod notify;
mod oracle;
#[cfg(feature = "otlp")]
mod otlp;
mod pages;
mod plan;
mod probe;
mod push;
mod rank;
mod resident;
mod serve;
mod signal;
mod source;
mod stage;
mod top;
mod ways;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{BenchCommand, Cli, Command, KeyCommand, StoreCommand};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let serves = matches!(
        cli.command,
        Command::Serve(_)
            | Command::Stage(_)
            | Command::Node(_)
            | Command::Store { command: StoreCommand::Serve(_) }
    );
    let log = cli.log.as_deref().unwrap_or(if serves { "info" } else { "warn" });
    log::start(log);
    if !serves {
        signal::end_with_the_reader();
    }
    match run(cli.command, log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One write, so that ranks that share a terminal don't mix their lines.
            let line = format!("baton: {}\n", line(&error));
            let _ = std::io::stderr().write_all(line.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes in one line; a cause that the line already holds is not repeated.
fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&cause);
        }
    }
    line
}

fn run(command: Command, log: &str) -> anyhow::Result<()> {
    match command {
        Command::Serve(args) => serve::run(&args, log),
        Command::Stage(args) => stage::run(&args),
        Command::Node(args) => node::run(&args, log),
        Command::Replan(args) => nodes::replan(&args.url),
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Completions { shell } => {
            pages::complete(shell);
            Ok(())
        }
        Command::Man { dir } => pages::man(dir.as_deref()),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => match &args.command {
            Some(BenchCommand::Serve(args)) => bench::serve(args),
            None => bench::run(&args),
        },
        Command::Probe(args) => probe::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Record(args) => oracle::record(&args),
        Command::Accept(args) => oracle::accept(&args),
        Command::Pull { model } => {
            println!("{}", source::resolve(&model)?.display());
            Ok(())
        }
        Command::Inspect { model, json } => inspect::run(&model, json),
        Command::Manifest { model } => manifest::run(&model),
        Command::Cut { model, range, folder } => manifest::cut(&model, &range, &folder),
        Command::Push(args) => push::run(&args),
        Command::Store { command } => depot::run(&command),
        Command::Key { command: KeyCommand::New { file } } => {
            ring::key::Key::generate_file(&file)?;
            println!(
                "wrote {}: copy it to every machine of the ring, readable by its owner only",
                file.display()
            );
            Ok(())
        }
    }
}
