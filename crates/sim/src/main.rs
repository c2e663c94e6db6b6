//! `cargo xtask sim`: seeds through the simulator.

use std::process::ExitCode;

use baton_sim::campaign::Campaign;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match Campaign::parse(&arguments).and_then(|campaign| campaign.report()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
