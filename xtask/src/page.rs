//! The page at `/` in a headless Chromium, on a ring of three: used by keyboard, photographed;
//! and `baton top` beside it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::step::{self, Steps};

/// What drives the browser, and what the terminal of `baton top` is.
const PACKAGES: [&str; 2] = ["playwright==1.65.2", "pyte==0.8.2"];
/// Programs that it may be, by name.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Uses the page at desktop and phone width, dark and light; screenshots lie in `target/page`.
/// `--short` says that it is skipped where there is no browser; else that is an error.
///
/// # Errors
/// Anything that the page does not do, console errors, a proof that does not hold.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let short = match arguments {
        [] => false,
        [one] if one == "--short" => true,
        _ => bail!("expected [--short]"),
    };
    let Some(browser) = BROWSERS.iter().find_map(|name| step::found(name)) else {
        ensure!(short, "no Chromium on the path (Debian: apt-get install chromium)");
        println!("skipped: page: no Chromium on the path");
        return Ok(());
    };
    let folder = steps.root().join("target/page");
    let python = python(steps, &folder.join("venv"))?;
    let script = steps.root().join("xtask/src/page/drive.py");
    let baton = step::baton()?;
    let mut command = Command::new(python);
    command.arg(script).arg(baton.get_program()).arg(browser).arg(&folder);
    steps.run("page", &mut command)
}

fn python(steps: &mut Steps, folder: &std::path::Path) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let has = ["-c", "import playwright, pyte"];
    let quiet = Command::new(&python).args(has).stderr(Stdio::null()).status();
    if !quiet.is_ok_and(|status| status.success()) {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        steps.run("venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        let install = ["-m", "pip", "install", "--quiet"];
        steps.run("pip", Command::new(&python).args(install).args(PACKAGES))?;
    }
    Ok(python)
}
