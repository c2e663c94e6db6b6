//! A Python that has llama.cpp: the package as PyPI has it, built here with its own options.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::step::Steps;

/// What is raced.
const PACKAGE: &str = "llama-cpp-python==0.3.36";
/// Names a Python that has the package already.
const VARIABLE: &str = "BATON_LLAMA_PYTHON";

/// The Python that was asked for, else the variable's, else one in `folder`, where the package is
/// built unless it is there. A short race builds nothing: without one, `None`.
///
/// # Errors
/// A Python that lacks the package; one that can't be made.
pub fn python(
    steps: &mut Steps,
    folder: &Path,
    asked: Option<PathBuf>,
    short: bool,
) -> Result<Option<PathBuf>> {
    let named = asked.or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    if let Some(python) = named {
        ensure!(has_package(&python), "{}: `import llama_cpp` fails", python.display());
        return Ok(Some(python));
    }
    let venv = folder.join("venv");
    let python = venv.join("bin/python");
    if has_package(&python) {
        return Ok(Some(python));
    }
    if short {
        println!("llama.cpp is not built: race alone ({VARIABLE} names a Python that has it)");
        return Ok(None);
    }
    steps.run("venv", Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let pip = ["-m", "pip", "install", "--no-binary", "llama-cpp-python", PACKAGE];
    steps.run("llama.cpp", Command::new(&python).args(pip))?;
    Ok(Some(python))
}

fn has_package(python: &Path) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", "import llama_cpp"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
