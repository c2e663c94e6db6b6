//! The PyPI `openai` client, unmodified, against one rank and three.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::model::TINY;
use crate::process::{Baton, s};
use crate::ring::Server;
use crate::turn::Turn;

const CLIENT: &str = "openai==3.57.0";

/// Runs a program to its end; what it printed, or why it failed.
fn run<S: AsRef<std::ffi::OsStr>>(program: &Path, args: &[S]) -> Result<String, String> {
    if program.is_absolute() && !program.exists() {
        return Err(format!("no {}", program.display()));
    }
    let mut command = Command::new(program);
    command.args(args);
    let mut process = Baton::spawn(command);
    let status = process.exit(s(180));
    let (out, log) = (process.out.to_end(s(5)), process.log.to_end(s(5)));
    if status.success() { Ok(out) } else { Err(format!("{}: {out}\n{log}", program.display())) }
}

/// A Python that has the client: `BATON_OPENAI_PYTHON`, else one in an environment of its own under
/// the target folder.
fn python() -> Result<PathBuf, String> {
    if let Some(python) = std::env::var_os("BATON_OPENAI_PYTHON") {
        return Ok(python.into());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(CLIENT);
    let python = folder.join("bin/python");
    if run(&python, &["-c", "import openai"]).is_ok() {
        return Ok(python);
    }
    let folder = folder.to_str().unwrap();
    run(Path::new("python3"), &["-m", "venv", "--clear", folder])?;
    run(&python, &["-m", "pip", "install", "--quiet", CLIENT])?;
    Ok(python)
}

/// Skipped, and says so past the harness's capture, where the client can't be installed;
/// `BATON_OPENAI_REQUIRED` makes that a failure.
#[test]
fn the_openai_client_gets_the_same_replies_from_one_rank_and_from_three() {
    let _turn = Turn::shared();
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            let required = std::env::var_os("BATON_OPENAI_REQUIRED").is_some();
            assert!(!required, "no openai client: {reason}");
            let _ = writeln!(std::io::stderr(), "skipped: the openai client: {reason}");
            return;
        }
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let replies = ["1", "3"].map(|world| {
        let server = Server::ready(&TINY, &["--world", world, "--threads", "1"]);
        let url = format!("http://{}/v1", server.addr);
        run(&python, &[script, &url])
            .unwrap_or_else(|e| panic!("{e}\n{}", server.process.log.text()))
    });
    assert!(replies[0].contains("\"client\""), "{}", replies[0]);
    assert_eq!(replies[0], replies[1]);
    println!("{}", replies[0]);
}
