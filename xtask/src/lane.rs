//! A chore beside the others: it takes only what they leave of the cores, and what it says is held
//! back until it is waited for.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::{silence, step};

/// How often a chore is asked whether it is done.
const PAUSE: Duration = Duration::from_millis(100);

/// A chore of this program that runs; ended, with all that it started, when it is dropped.
pub struct Lane {
    name: &'static str,
    child: Child,
    log: PathBuf,
    done: Option<ExitStatus>,
}

impl Lane {
    /// Starts `cargo xtask` with these `words`; its output goes to a file in `folder`.
    ///
    /// # Errors
    /// A program that does not start, a folder that can't be written.
    pub fn start(name: &'static str, words: &[&str], folder: &Path) -> Result<Self> {
        let own = std::env::current_exe().context("this program's own path")?;
        let mut command = match step::installed("nice") {
            true => Command::new("nice"),
            false => Command::new(&own),
        };
        if step::installed("nice") {
            command.args(["-n", "19"]).arg(&own);
        }
        command.args(words);
        Self::spawn(name, &mut command, folder)
    }

    fn spawn(name: &'static str, command: &mut Command, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stderr(file.try_clone().context("a log")?).stdout(file);
        let child = command.spawn().with_context(|| format!("can't run {command:?}"))?;
        Ok(Self { name, child, log, done: None })
    }

    /// Waits until the chore is done, then prints what it said. `false` where it was not done
    /// `within` that time: it is ended then.
    ///
    /// # Errors
    /// A chore that failed.
    pub fn wait(mut self, within: Duration) -> Result<bool> {
        let since = Instant::now();
        while self.done.is_none() && since.elapsed() < within {
            self.done = self.child.try_wait().context("a child")?;
            if self.done.is_none() {
                std::thread::sleep(PAUSE);
            }
        }
        let said = std::fs::read(&self.log).with_context(|| self.log.display().to_string())?;
        print!("{}", String::from_utf8_lossy(&said));
        let Some(status) = self.done else { return Ok(false) };
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(true)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.done.is_none() {
            silence::end(self.child.id());
            let _ = self.child.wait(); // it was just killed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &'static str, script: &str) -> Lane {
        let folder = std::env::temp_dir().join("baton-xtask-lane");
        Lane::spawn(name, Command::new("sh").args(["-c", script]), &folder).expect("a lane")
    }

    #[test]
    fn a_lane_that_fails_fails_where_it_is_waited_for() {
        assert!(lane("well", "echo said").wait(Duration::from_secs(60)).expect("it ends well"));
        let error = lane("ill", "exit 3").wait(Duration::from_secs(60)).expect_err("it fails");
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn a_lane_that_takes_too_long_is_ended_with_what_it_started() {
        let since = Instant::now();
        let late = lane("late", "sleep 600; echo late");
        assert!(!late.wait(Duration::from_millis(300)).expect("it is no failure"));
        assert!(since.elapsed() < Duration::from_secs(300));
    }
}
