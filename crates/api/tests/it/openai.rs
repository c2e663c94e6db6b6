//! The PyPI `openai` client, unmodified.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::Server;

const CLIENT: &str = "openai==3.57.0";

fn run(program: &Path, arguments: &[&str]) -> Result<Output, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    Err(format!("{} {arguments:?} failed: {stdout}{stderr}", program.display()))
}

/// A Python that has the client, in an environment of its own under the target folder.
fn python() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(CLIENT);
    let python = folder.join("bin/python");
    if run(&python, &["-c", "import openai"]).is_ok() {
        return Ok(python);
    }
    let folder = folder.to_string_lossy();
    run(Path::new("python3"), &["-m", "venv", "--clear", &folder])?;
    run(&python, &["-m", "pip", "install", "--quiet", CLIENT])?;
    Ok(python)
}

/// Skipped, and says so past the harness's capture, where the client can't be installed;
/// `BATON_OPENAI_REQUIRED` makes that a failure.
#[test]
fn the_openai_client_works_unmodified() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            let required = std::env::var_os("BATON_OPENAI_REQUIRED").is_some();
            assert!(!required, "no openai client: {reason}");
            let _ = writeln!(std::io::stderr(), "SKIPPED the openai client: {reason}");
            return;
        }
    };
    let server = Server::start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let url = format!("http://{}/v1", server.addr);
    let output = run(&python, &[script, &url]).unwrap_or_else(|e| panic!("{e}"));
    let output = String::from_utf8_lossy(&output.stdout);
    assert!(output.contains(" passed"), "{output}");
    print!("{output}");
}
