//! The PyPI clients `openai` and `anthropic`, unmodified.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::Server;

const OPENAI: &str = "openai==3.57.0";
const ANTHROPIC: &str = "anthropic==2.14.0";

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
fn python(client: &str) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(client);
    let module = client.split("==").next().unwrap_or(client);
    let python = folder.join("bin/python");
    if run(&python, &["-c", &format!("import {module}")]).is_ok() {
        return Ok(python);
    }
    let folder = folder.to_string_lossy();
    run(Path::new("python3"), &["-m", "venv", "--clear", &folder])?;
    run(&python, &["-m", "pip", "install", "--quiet", client])?;
    Ok(python)
}

/// Skipped, and says so past the harness's capture, where the client can't be installed;
/// `BATON_OPENAI_REQUIRED` makes that a failure.
fn try_client(client: &str, script: &str, url: impl Fn(&Server) -> String) {
    let python = match python(client) {
        Ok(python) => python,
        Err(reason) => {
            let required = std::env::var_os("BATON_OPENAI_REQUIRED").is_some();
            assert!(!required, "no {client}: {reason}");
            let _ = writeln!(std::io::stderr(), "SKIPPED {client}: {reason}");
            return;
        }
    };
    let server = Server::start();
    let script = format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR"));
    let output = run(&python, &[&script, &url(&server)]).unwrap_or_else(|e| panic!("{e}"));
    let output = String::from_utf8_lossy(&output.stdout);
    assert!(output.contains(" passed"), "{output}");
    print!("{output}");
}

#[test]
fn the_openai_client_works_unmodified() {
    try_client(OPENAI, "openai_client.py", |server| format!("http://{}/v1", server.addr));
}

#[test]
fn the_anthropic_client_works_unmodified() {
    try_client(ANTHROPIC, "anthropic_client.py", |server| format!("http://{}", server.addr));
}
