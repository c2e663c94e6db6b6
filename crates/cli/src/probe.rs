//! `baton probe`: what this machine is to a placement, measured on the model's own layers.

pub mod links;
mod measure;
mod walk;

use std::ffi::CString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use placement::{Curve, FACTS_VERSION, Facts, Node};
use ring::key::Key;
use text::Text;

use crate::args::Probe;
use crate::model::{ENGINE, MEMORY_FLOOR_BYTES, Model};
use crate::{resident, source};

use links::Reach;
pub use measure::measure;

/// What serving HTTP takes before there are many clients: its threads, their code and buffers.
const HTTP_BYTES: u64 = 4 << 20;
/// How long a measurement is used again.
const KEPT_S: u64 = 7 * 24 * 3_600;

/// Measures, or takes what was measured before, and prints it.
///
/// # Errors
/// A model that can't be opened, a device that is missing.
pub fn run(args: &Probe) -> Result<()> {
    let settings = args.shared.settings(1);
    let mut model = Model::open(&source::resolve(&args.shared.model)?, settings)?;
    // A machine that has no layer yet is measured all the same.
    model.checkpoint.make_up();
    let threads = crate::serve::threads(&args.shared, 1);
    let mut probed = probed(&model, threads, args.again, args.name.clone())?;
    probed.listen.clone_from(&args.listen);
    let key = args.key.as_deref().map(Key::load).transpose()?;
    let encryption = args.shared.encryption.into();
    let (again, name, patience) = (args.again, &*probed.node.name, links::PATIENCE);
    let reach = Reach { name, key: key.as_ref(), encryption, again, patience };
    probed.paths = links::paths(&reach, &args.peer)?;
    if let Some(file) = &args.out {
        let text = serde_json::to_string_pretty(&probed)?;
        std::fs::write(file, text).with_context(|| format!("{}", file.display()))?;
    }
    match args.json {
        true => println!("{}", serde_json::to_string(&probed)?),
        false => print!("{}{}{}", table(&probed), links::table(&probed.paths), adapters()),
    }
    match args.answer {
        true => links::answer(listened(&args.listen)?, key, encryption),
        false => Ok(()),
    }
}

/// The sockets of --listen.
fn listened(addresses: &[String]) -> Result<Vec<SocketAddr>> {
    let mut sockets = Vec::new();
    for address in addresses {
        sockets.extend(ring::address::resolve(address).with_context(|| address.clone())?);
    }
    Ok(sockets)
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// This machine's measurement: the kept one, where there is a fresh one of this model, device,
/// engine and number of threads.
///
/// # Errors
/// As [`run`]'s.
pub fn probed(model: &Model, threads: usize, again: bool, name: Option<String>) -> Result<Facts> {
    let device = model.device(arith::base::Rank(0), 0);
    let seat = model.seat(arith::base::Rank(0), 0, threads)?;
    let digest = model.digest()?;
    let name = name.unwrap_or_else(host_name);
    let arith = model.settings.arith.number();
    let key = format!(
        "{FACTS_VERSION}\n{digest}\n{ENGINE}\n{arith}\n{}\n{threads}\n{name}",
        seat.device()
    );
    let kept = source::cache_dir()?.join("probe").join(source::sha256_hex(key.as_bytes()));
    let now = now_s();
    if !again && let Some(probed) = read(&kept).filter(|p| now.abs_diff(p.measured_at) < KEPT_S) {
        return Ok(probed);
    }
    resident::give_back();
    let before = resident::resident();
    let free_bytes = seat.free_bytes().unwrap_or(u64::MAX);
    let costs = measure(model, &seat)?;
    // A rank's kernels count as its own once they have run.
    let code_bytes = resident::resident().code_bytes.max(before.code_bytes);
    let runtime_bytes = before.own_bytes + code_bytes;
    let endpoint_bytes = endpoint_bytes(model);
    let node = Node {
        name,
        device: seat.device(),
        memory_bytes: free_bytes.saturating_sub(MEMORY_FLOOR_BYTES),
        runtime_bytes,
        endpoint_bytes,
        runs: seat.runs(),
        costs,
    };
    let probed = Facts {
        version: FACTS_VERSION,
        model: digest,
        engine: ENGINE.to_owned(),
        arith,
        device: device.to_string(),
        threads,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        disk_bytes: disk_bytes(&source::cache_dir()?),
        measured_at: now,
        listen: Vec::new(),
        paths: Vec::new(),
        node,
    };
    let keep = || -> Result<()> {
        std::fs::create_dir_all(kept.parent().context("a folder")?)?;
        Ok(std::fs::write(&kept, serde_json::to_string(&probed)?)?)
    };
    if let Err(error) = keep() {
        tracing::warn!("the measurement is not kept: {error}");
    }
    Ok(probed)
}

/// What the endpoint takes: the model's tokenizer, and what serves HTTP. A rank that does not serve
/// needs no tokenizer, so a model without one takes none.
fn endpoint_bytes(model: &Model) -> u64 {
    resident::give_back();
    let before = resident::resident().own_bytes;
    let text = Text::from_checkpoint(&model.checkpoint).ok();
    resident::give_back();
    let text_bytes = resident::resident().own_bytes.saturating_sub(before);
    drop(text);
    text_bytes + HTTP_BYTES
}

/// A measurement that was kept; `None` where there is none that can be read.
fn read(kept: &PathBuf) -> Option<Facts> {
    serde_json::from_str(&std::fs::read_to_string(kept).ok()?).ok()
}

/// What the system calls this machine.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "this".to_owned() } else { name.to_owned() }
}

/// Free bytes of the disk that `folder` is on, or will be; 0 where the system does not say.
#[allow(clippy::unnecessary_cast, reason = "macOS counts blocks in 32 bits")]
pub fn disk_bytes(folder: &Path) -> u64 {
    let there = folder.ancestors().find(|folder| folder.exists());
    let path = there.and_then(|there| CString::new(there.as_os_str().as_bytes()).ok());
    let Some(path) = path else { return 0 };
    let mut told = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a path that ends in a zero, and room for what is told.
    if unsafe { libc::statvfs(path.as_ptr(), told.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: the call succeeded, and so has filled it.
    let told = unsafe { told.assume_init() };
    told.f_bavail as u64 * told.f_frsize as u64
}

/// What `--device gpu:N` could name here, a line each.
#[cfg(feature = "gpu")]
fn adapters() -> String {
    let line =
        |a: gpu::Adapter| format!("gpu:{}: {}, {} ({})\n", a.ordinal, a.name, a.api, a.driver);
    gpu::adapters().into_iter().map(line).collect()
}

/// None: this binary takes no GPU over Metal or Vulkan.
#[cfg(not(feature = "gpu"))]
fn adapters() -> String {
    String::new()
}

/// How long ago something was, for people.
pub fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => "now".into(),
        60..7_200 => format!("{} minutes ago", seconds / 60),
        7_200..172_800 => format!("{} hours ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// Times for people.
fn table(probed: &Facts) -> String {
    let Node { name, device, memory_bytes, costs, .. } = &probed.node;
    let gib = *memory_bytes as f64 / f64::from(1 << 30);
    let disk_gib = probed.disk_bytes as f64 / f64::from(1 << 30);
    let mut text = format!(
        "{name}: {device}, {} threads of {} cores, {gib:.1} GiB to use, {disk_gib:.0} GiB of disk\n\
         measured {}; --again measures anew\n\n\
         | what | context | rows | time |\n|---|---|---|---|\n",
        probed.threads,
        probed.cores,
        ago(now_s().saturating_sub(probed.measured_at))
    );
    let mut lines = |what: &str, curve: &Curve| {
        for point in curve.points() {
            let ms = point.time_s * 1e3;
            text += &format!("| {what} | {} | {} | {ms:.3} ms |\n", point.context, point.rows);
        }
    };
    lines("attention layer", &costs.attention);
    lines("recurrent layer", &costs.recurrent);
    lines("head", &costs.ends);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dated_in_words() {
        let told = [59, 60, 7_199, 7_200, 172_800].map(ago);
        assert_eq!(told, ["now", "1 minutes ago", "119 minutes ago", "2 hours ago", "2 days ago"]);
    }
}
