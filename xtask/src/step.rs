//! Steps of a chore: commands whose names, wall times and failures are printed.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Runs steps in the repository's root and remembers how long each took.
pub struct Steps {
    root: PathBuf,
    since: Instant,
    taken: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// None yet.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), since: Instant::now(), taken: Vec::new() }
    }

    /// The repository.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Since there were none.
    pub fn spent(&self) -> Duration {
        self.since.elapsed()
    }

    /// Runs a command to its end; anything but success is an error.
    pub fn run(&mut self, name: &'static str, command: &mut Command) -> Result<()> {
        command.current_dir(&self.root);
        self.time(name, || {
            let status = command.status().with_context(|| format!("can't run {command:?}"))?;
            ensure!(status.success(), "{command:?} ended with {status}");
            Ok(())
        })
    }

    /// Runs a step inside this process.
    pub fn time<T>(&mut self, name: &'static str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("== {name}");
        let started = Instant::now();
        let result = step();
        let taken = started.elapsed();
        self.taken.push((name, taken));
        println!("== {name}: {:.1} s", taken.as_secs_f64());
        result.with_context(|| format!("step {name}"))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, taken) in &self.taken {
            writeln!(f, "{name:>8} {:7.1} s", taken.as_secs_f64())?;
        }
        write!(f, "{:>8} {:7.1} s", "all", self.spent().as_secs_f64())
    }
}

/// The cargo that runs us.
pub fn cargo(arguments: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(arguments);
    command
}

/// The `baton` that the tests build; it lies beside us, whatever the target folder.
pub fn baton() -> Result<Command> {
    let own = std::env::current_exe().context("this program's own path")?;
    Ok(Command::new(own.with_file_name("baton")))
}

/// Whether a program of that name is on the path.
pub fn installed(name: &str) -> bool {
    found(name).is_some()
}

/// Where the path has a program of that name.
pub fn found(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
