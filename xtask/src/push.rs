//! `cargo xtask push`: a model's layers to two machines at once, over a gigabit each that the
//! kernel's shaper makes: how much of both links is used, and what is sent again after a kill, at a
//! second start, when a cut moves and when a unit is damaged.

mod net;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use arith::format::Format;
use weights::synthetic::{self, Llama};
use weights::{Checkpoint, Stock, unit};

use crate::step::Steps;
use crate::synthetic::parse_bytes;
use net::Net;

/// A link's rate.
const RATE: u64 = 1_000_000_000;
/// The share of it that a push must reach.
const SHARE: f64 = 0.9;
/// How often counters are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What a kill may cost: chunks in flight, and what is on the wire.
const AGAIN_BYTES: u64 = 32 << 20;

/// What the command is asked for.
struct Asked {
    bytes: u64,
    model: Option<PathBuf>,
    folder: Option<PathBuf>,
    baton: Option<PathBuf>,
}

/// A machine that is pushed to. It ends with this.
struct Machine {
    child: Child,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Killed, as a machine that loses its power: nothing may depend on a better end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `baton push` printed of a machine.
#[derive(Clone, Debug)]
struct Line {
    all: u64,
    missing: u64,
    sent: u64,
    seconds: f64,
    path: PathBuf,
}

/// Everything that a run needs.
struct Stand {
    net: Net,
    baton: PathBuf,
    model: PathBuf,
    folder: PathBuf,
    layers: u32,
}

/// Runs it; the summary is its last line.
///
/// # Errors
/// An argument that can't be, a machine without namespaces, and anything that is not as it must be.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let asked = parse(arguments)?;
    let folder = asked.folder.clone().unwrap_or_else(|| steps.root().join("target/push"));
    fs::create_dir_all(&folder)?;
    let baton = asked.baton.clone().map_or_else(|| crate::race::baton(steps, true), Ok)?;
    let model = asked.model.clone().unwrap_or_else(|| folder.join("model.gguf"));
    if asked.model.is_none() {
        synthetic::llama(&model, &Llama::of_bytes(asked.bytes, Format::F16))?;
    }
    let net = Net::lay(RATE)?;
    let layers = Checkpoint::open(&model)?.config().layers();
    let stand = Stand { net, baton, model, folder, layers };
    let key = stand.key();
    if !key.exists() {
        stand.baton(None).args(["key", "new"]).arg(&key).stdout(Stdio::null()).status()?;
    }
    let summary = stand.all();
    for at in 0..2 {
        let _ = fs::remove_dir_all(stand.store(at));
    }
    if asked.model.is_none() {
        fs::remove_file(&stand.model)?;
    }
    println!("push: {}", summary?);
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Asked> {
    let mut asked = Asked { bytes: 4 << 30, model: None, folder: None, baton: None };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--bytes" => asked.bytes = parse_bytes(value()?)?,
            "--model" => asked.model = Some(value()?.into()),
            "--folder" => asked.folder = Some(value()?.into()),
            "--baton" => asked.baton = Some(value()?.into()),
            other => bail!("push: {other}: expected --bytes, --model, --folder or --baton"),
        }
    }
    Ok(asked)
}

impl Stand {
    fn key(&self) -> PathBuf {
        self.folder.join("ring.key")
    }

    fn store(&self, at: usize) -> PathBuf {
        self.folder.join(["store-a", "store-b"][at])
    }

    /// `baton`, on a machine of the net, or here.
    fn baton(&self, machine: Option<&str>) -> Command {
        let mut command = match machine {
            Some(machine) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", machine]).arg(&self.baton);
                command
            }
            None => Command::new(&self.baton),
        };
        command.env("BATON_CACHE", self.folder.join("cache")).stdin(Stdio::null());
        command
    }

    /// Starts machine `at`, with what its store holds.
    fn start(&self, at: usize) -> Result<Machine> {
        let mut command = self.baton(Some(&self.net.machines[at]));
        let listen = format!("{}:7500", Net::ADDRESSES[at]);
        command.args(["store", "serve", "--listen", &listen, "--folder"]).arg(self.store(at));
        command.arg("--key").arg(self.key()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("can't run {command:?}"))?;
        let log = child.stderr.take().context("its log")?;
        let machine = Machine { child };
        let mut lines = BufReader::new(log).lines();
        let up = lines.by_ref().map_while(Result::ok).any(|line| line.contains("takes models"));
        ensure!(up, "{listen}: the store does not come up");
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok).filter(|line| line.contains("WARN")) {
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        });
        Ok(machine)
    }

    fn empty(&self) -> Result<[Machine; 2]> {
        for at in 0..2 {
            let _ = fs::remove_dir_all(self.store(at));
        }
        Ok([self.start(0)?, self.start(1)?])
    }

    fn pushing(&self, layers: [Option<(u32, u32)>; 2]) -> Result<Child> {
        let mut command = self.baton(Some(&self.net.source));
        command.arg("push").arg(&self.model).arg("--key").arg(self.key());
        for (address, layers) in Net::ADDRESSES.iter().zip(layers) {
            if let Some((first, end)) = layers {
                command.args(["--to", &format!("{address}:7500={first}:{end}")]);
            }
        }
        command.stdout(Stdio::piped());
        command.spawn().with_context(|| format!("can't run {command:?}"))
    }

    fn push(&self, layers: [Option<(u32, u32)>; 2]) -> Result<Vec<Line>> {
        lines(self.pushing(layers)?)
    }

    fn all(&self) -> Result<String> {
        let all = [Some((0, self.layers)); 2];
        let machines = self.empty()?;
        // What the source has to digest it has digested before the clock runs.
        self.push([Some((0, 1)), None])?;
        drop(machines);
        let (mut summary, share) = self.speed(all)?;
        summary += &self.killed(all)?;
        summary += &self.again(all)?;
        summary += &self.moved()?;
        // Last, for it is the only one that a busy machine can spoil.
        ensure!(share >= SHARE, "less than {SHARE} of a link: {summary}");
        Ok(summary)
    }

    /// How fast it goes to both, and the smaller share of a link.
    fn speed(&self, layers: [Option<(u32, u32)>; 2]) -> Result<(String, f64)> {
        let _machines = self.empty()?;
        let before = self.net.carried()?;
        let lines = self.push(layers)?;
        let after = self.net.carried()?;
        let (mut said, mut least) = (Vec::new(), f64::INFINITY);
        for (at, line) in lines.iter().enumerate() {
            let rate = |bytes: u64| bytes as f64 * 8.0 / line.seconds / RATE as f64;
            let (net, wire) = (rate(line.sent), rate(after[at] - before[at]));
            println!(
                "{}: {} bytes in {:.2} s: {:.1} % of the link, {:.1} % with headers",
                ["a", "b"][at],
                line.sent,
                line.seconds,
                100.0 * net,
                100.0 * wire
            );
            ensure!(line.missing == line.all && line.sent >= line.all, "{line:?}");
            least = least.min(net);
            said.push(format!("{:.1} %", 100.0 * net));
        }
        self.check(&lines)?;
        let gib = lines[0].all as f64 / f64::from(1 << 30);
        let said = said.join(" and ");
        Ok((format!("{gib:.2} GiB to each of two over 1 Gbit/s: {said} of the links"), least))
    }

    /// One of the two is killed at half and comes back.
    fn killed(&self, layers: [Option<(u32, u32)>; 2]) -> Result<String> {
        let [a, _b] = self.empty()?;
        let start = self.net.carried()?[0];
        let pushing = self.pushing(layers)?;
        let half = Checkpoint::open(&self.model)?.bytes_of(0..self.layers, true) / 2;
        let since = Instant::now();
        while self.net.carried()?[0] - start < half {
            ensure!(since.elapsed() < Duration::from_secs(300), "half does not come");
            std::thread::sleep(LOOK);
        }
        drop(a);
        let _a = self.start(0)?;
        let lines = lines(pushing)?;
        let again = lines[0].sent.saturating_sub(lines[0].all);
        println!("a, killed at half: {} bytes sent of {}", lines[0].sent, lines[0].all);
        ensure!(again < AGAIN_BYTES, "{again} bytes again");
        ensure!(lines[0].sent >= lines[0].all, "{:?}", lines[0]);
        self.check(&lines)?;
        Ok(format!("; killed at half: {again} bytes again"))
    }

    /// Both start anew and lack nothing; then a unit of one is damaged.
    fn again(&self, layers: [Option<(u32, u32)>; 2]) -> Result<String> {
        let (_a, _b) = (self.start(0)?, self.start(1)?);
        let lines = self.push(layers)?;
        println!("second start: {} and {} bytes", lines[0].sent, lines[1].sent);
        ensure!(lines.iter().all(|line| line.missing == 0 && line.sent == 0), "{lines:?}");
        let stock = Stock::of(&Checkpoint::open(&lines[0].path)?, None)?;
        let listed = stock.catalog().units().last().context("a unit")?;
        let at = unit::path(&self.store(0).join(unit::UNITS), &listed.digest());
        let file = File::options().read(true).write(true).open(&at)?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, listed.bytes() / 2)?;
        file.write_all_at(&[byte[0] ^ 1], listed.bytes() / 2)?;
        let mended = self.push([layers[0], None])?;
        println!("a damaged unit of {} bytes: {} sent", listed.bytes(), mended[0].sent);
        ensure!(mended[0].sent == listed.bytes(), "{mended:?}");
        self.check(&mended)?;
        Ok(format!("; second start: 0 bytes; a damaged unit: its {} bytes", mended[0].sent))
    }

    /// A cut moves by two layers.
    fn moved(&self) -> Result<String> {
        let _machines = self.empty()?;
        let half = self.layers / 2;
        self.push([Some((half, self.layers)), None])?;
        let lines = self.push([Some((half - 2, self.layers)), None])?;
        let expected = Checkpoint::open(&self.model)?.bytes_of(half - 2..half, false);
        println!("two layers more, of {expected} bytes: {} sent", lines[0].sent);
        ensure!(lines[0].sent == expected, "{lines:?}");
        Ok(format!("; a cut moved by two layers: their {expected} bytes"))
    }

    /// Every tensor there has its digest.
    fn check(&self, lines: &[Line]) -> Result<()> {
        for line in lines {
            let opened = Checkpoint::open(&line.path)?;
            let manifest = opened.manifest().context("a manifest")?;
            for tensor in opened.tensors() {
                let expected = manifest.digests().get(&tensor.name);
                ensure!(Some(opened.digest(&tensor.name)?) == expected, "{}", tensor.name);
            }
        }
        Ok(())
    }
}

/// What a push prints, a line a machine.
fn lines(pushing: Child) -> Result<Vec<Line>> {
    let output = pushing.wait_with_output()?;
    ensure!(output.status.success(), "baton push: {}", output.status);
    String::from_utf8(output.stdout)?.lines().map(line).collect()
}

/// `ADDRESS: layers A:B, N bytes, N missing, N sent in S s: PATH`.
fn line(text: &str) -> Result<Line> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let before = |word: &str| -> Result<&str> {
        let at = words.iter().position(|found| found.trim_end_matches([',', ':']) == word);
        at.and_then(|at| words.get(at.checked_sub(1)?)).copied().with_context(|| text.to_owned())
    };
    Ok(Line {
        all: before("bytes")?.parse()?,
        missing: before("missing")?.parse()?,
        sent: before("sent")?.parse()?,
        seconds: before("s")?.parse()?,
        path: Path::new(words.last().context("a path")?).to_path_buf(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_push_are_read() {
        let text = "10.7.1.2:7500: layers 0:8, 90 bytes, 80 missing, 70 sent in 1.25 s: /x/m.gguf";
        let read = line(text).unwrap();
        assert_eq!((read.all, read.missing, read.sent), (90, 80, 70));
        assert_eq!((read.seconds, read.path), (1.25, PathBuf::from("/x/m.gguf")));
        assert!(line("10.7.1.2:7500: nothing").is_err());
    }
}
