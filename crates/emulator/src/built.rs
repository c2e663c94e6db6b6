//! Kernels' C as functions: compiled by the system's compiler, and kept.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::run::Thread;

/// Contraction is off, and integers wrap, as PTX has it.
const OPTIONS: [&str; 9] = [
    "-O1",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-math-errno",
    "-fno-stack-protector",
    "-w",
    "-shared",
    "-fPIC",
];

/// A kernel as a function of a thread.
pub(crate) type Function = unsafe extern "C" fn(*mut Thread);

/// The function `kernel` of C that is compiled, or was before and is kept in `cache`.
///
/// # Errors
/// What the compiler or the loader says.
pub(crate) fn function(name: &str, text: &str, cache: &Path) -> Result<Function, String> {
    let path = cache.join(file_name(name, text));
    if !path.exists() {
        compile(name, text, &path)?;
    }
    load(&path)
}

fn options() -> Vec<&'static str> {
    let mut options = OPTIONS.to_vec();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        options.extend(["-mfma", "-mavx2"]);
    }
    options
}

fn file_name(name: &str, text: &str) -> String {
    let mut hash = Sha256::new();
    options().iter().for_each(|option| hash.update(option));
    hash.update(text);
    let hex: String = hash.finalize()[..10].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}-{name}-{}.so", std::env::consts::ARCH)
}

/// Compiles beside `path` and moves it there, so that nobody meets half of it.
fn compile(name: &str, text: &str, path: &Path) -> Result<(), String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = |ending: &str| -> PathBuf {
        path.with_extension(format!("{}-{number}.{ending}", std::process::id()))
    };
    let (c, part) = (beside("c"), beside("part"));
    let told = |what: &str, error: std::io::Error| format!("{name}: {what}: {error}");
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|e| told(&folder.display().to_string(), e))?;
    fs::write(&c, text).map_err(|e| told(&c.display().to_string(), e))?;
    let made = Command::new("cc").args(options()).arg("-o").arg(&part).arg(&c).arg("-lm").output();
    let made = made.map_err(|e| told("the C compiler `cc` does not run", e))?;
    if !made.status.success() {
        let words = String::from_utf8_lossy(&made.stderr).into_owned();
        let first: String = words.lines().take(5).collect::<Vec<_>>().join("\n");
        return Err(format!("{name}: cc can't compile {}: {first}", c.display()));
    }
    let _ = fs::remove_file(&c);
    fs::rename(&part, path).map_err(|e| told(&path.display().to_string(), e))
}

/// What is loaded stays until the process ends.
fn load(path: &Path) -> Result<Function, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a terminated path to a library that has no code of its own at loading.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(format!("{}: {}", path.display(), loader_words()));
    }
    // SAFETY: a library, and a terminated name.
    let found = unsafe { libc::dlsym(library, c"kernel".as_ptr()) };
    if found.is_null() {
        return Err(format!("{}: {}", path.display(), loader_words()));
    }
    // SAFETY: we wrote it as such a function.
    Ok(unsafe { std::mem::transmute::<*mut libc::c_void, Function>(found) })
}

fn loader_words() -> String {
    // SAFETY: the loader's own words, or none.
    let words = unsafe { libc::dlerror() };
    match words.is_null() {
        true => "the loader says nothing".into(),
        // SAFETY: terminated, until the next call of this thread.
        false => unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned(),
    }
}
