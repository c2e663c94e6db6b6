//! The compilation of kernel sources, and the cubins that are kept of them.
//!
//! A cubin's name says what it was made of: a digest of source and options, the architecture and
//! the compiler. One of another compiler serves as well, so that a machine without a compiler runs
//! what another one left.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::CudaError;
use crate::defects::Defect;
use crate::library::{Compiler, Handle};
use crate::units::{UNITS, Unit};

/// Contraction is off: a product is fused where the source says so. Division and square root are
/// rounded correctly and subnormals kept unless told otherwise; it is said here all the same.
const OPTIONS: [&str; 6] = [
    "-fmad=false",
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
    "-std=c++17",
    "-default-device",
];

/// A cubin and what its assembler said.
pub struct Cubin {
    /// The machine code.
    pub bytes: Vec<u8>,
    /// Registers, shared memory and spills of every kernel.
    pub log: String,
}

/// The compiler, loaded.
pub struct Nvrtc {
    library: Compiler,
    version: (i32, i32),
}

impl Nvrtc {
    /// Loads it from `path`, else from `BATON_NVRTC` or the usual places.
    ///
    /// # Errors
    /// `NoCompiler` or `OldLibrary`.
    pub fn open(path: Option<&str>) -> Result<Self, CudaError> {
        let named = std::env::var("BATON_NVRTC").ok();
        let library = Compiler::open(path.or(named.as_deref()))?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for two ints.
        unsafe { (library.version)(&mut major, &mut minor) };
        Ok(Self { library, version: (major, minor) })
    }

    /// Its version, as file names have it: `13.0`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Compiles a unit for an architecture, `sm_90` say.
    ///
    /// # Errors
    /// `Compile` with the compiler's words.
    pub fn compile(&self, unit: &Unit, arch: &str) -> Result<Cubin, CudaError> {
        self.compile_text(unit.name, &unit.source(), arch)
    }

    fn compile_text(
        &self,
        unit: &'static str,
        source: &str,
        arch: &str,
    ) -> Result<Cubin, CudaError> {
        let failed = |log: String| CudaError::Compile {
            unit,
            arch: arch.to_owned(),
            log: log.trim().to_owned(),
        };
        let text = |text: String| CString::new(text).map_err(|e| failed(e.to_string()));
        let (source, name) = (text(source.to_owned())?, text(format!("{unit}.cu"))?);
        let mut options = OPTIONS.map(str::to_owned).to_vec();
        options.push(format!("--gpu-architecture={arch}"));
        options.push("--ptxas-options=-v".to_owned());
        let options: Vec<CString> = options.into_iter().map(text).collect::<Result<_, _>>()?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Handle = std::ptr::null_mut();
        let none = std::ptr::null();
        let Compiler { create, compile, log_size, log, cubin_size, cubin, destroy, .. } =
            &self.library;
        // SAFETY: terminated strings, no headers, and a place for the program.
        let made = unsafe { create(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none) };
        if made != 0 {
            return Err(failed(format!("nvrtcCreateProgram gave {made}")));
        }
        // SAFETY: a program and as many options as said.
        let result = unsafe { compile(program, options.len() as i32, options.as_ptr()) };
        // SAFETY: sizes are asked for, then as many bytes are given.
        let log = unsafe { taken(program, *log_size, *log) };
        let bytes = match result {
            // SAFETY: as above; there is a cubin, since it compiled for a real architecture.
            0 => unsafe { taken(program, *cubin_size, *cubin) },
            _ => Vec::new(),
        };
        // SAFETY: the program is not used again.
        unsafe { destroy(&mut program) };
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        match result {
            0 => Ok(Cubin { bytes, log }),
            _ => Err(failed(log)),
        }
    }
}

/// Asks for a size, then for as many bytes.
///
/// # Safety
/// Both functions must be of the compiler and fit each other.
unsafe fn taken(
    program: Handle,
    size: unsafe extern "C" fn(Handle, *mut usize) -> i32,
    take: unsafe extern "C" fn(Handle, *mut std::ffi::c_char) -> i32,
) -> Vec<u8> {
    let mut bytes = 0;
    // SAFETY: the caller's promise.
    if unsafe { size(program, &mut bytes) } != 0 {
        return Vec::new();
    }
    let mut taken = vec![0_u8; bytes];
    // SAFETY: the caller's promise, and room for what was said.
    match unsafe { take(program, taken.as_mut_ptr().cast()) } {
        0 => taken,
        _ => Vec::new(),
    }
}

/// Every unit's cubin, one of them with a defect; nothing is kept.
///
/// # Errors
/// As [`cubins`], and `Compile` where the source does not hold what is swapped.
pub(crate) fn planted(
    cache: Option<&Path>,
    arch: &str,
    defect: &Defect,
) -> Result<Vec<Vec<u8>>, CudaError> {
    let mut all = cubins(cache, arch)?;
    for (unit, cubin) in UNITS.iter().zip(&mut all).filter(|(unit, _)| unit.name == defect.unit) {
        let [from, to] = defect.swap;
        let source = unit.source();
        let log = format!("`{from}` is not in it");
        if !source.contains(from) {
            return Err(CudaError::Compile { unit: unit.name, arch: arch.to_owned(), log });
        }
        let source = source.replace(from, to);
        *cubin = Nvrtc::open(None)?.compile_text(unit.name, &source, arch)?.bytes;
    }
    Ok(all)
}

/// Every unit's cubin from the sources of a folder, for work on kernels; nothing is kept.
///
/// # Errors
/// As [`cubins`], and `Compile` where a file can't be read.
pub(crate) fn from_folder(folder: &Path, arch: &str) -> Result<Vec<Vec<u8>>, CudaError> {
    let compiler = Nvrtc::open(None)?;
    let made = |unit: &Unit| {
        let mut source = String::new();
        for part in unit.parts {
            let path = folder.join(part.file).with_extension("cu");
            let text = fs::read_to_string(&path).map_err(|error| CudaError::Compile {
                unit: unit.name,
                arch: arch.to_owned(),
                log: format!("{}: {error}", path.display()),
            })?;
            source.push_str(&text);
        }
        Ok(compiler.compile_text(unit.name, &source, arch)?.bytes)
    };
    std::thread::scope(|scope| {
        let made = &made;
        let jobs: Vec<_> = UNITS.iter().map(|unit| scope.spawn(move || made(unit))).collect();
        jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| unreachable!())).collect()
    })
}

/// What a unit's cubins are called up to the compiler: digest, name, architecture.
fn stem(unit: &Unit, arch: &str) -> String {
    let mut hash = Sha256::new();
    unit.parts.iter().for_each(|part| hash.update(part.text));
    OPTIONS.iter().for_each(|option| hash.update(option));
    let digest = hash.finalize();
    let hex: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}-{}-{arch}-", unit.name)
}

/// The file name of a cubin that `compiler` made.
pub fn file_name(unit: &Unit, arch: &str, compiler: &str) -> String {
    format!("{}{compiler}.cubin", stem(unit, arch))
}

/// A cubin of this source and architecture that is kept in `folder`.
fn kept(folder: &Path, unit: &Unit, arch: &str) -> Option<Vec<u8>> {
    let stem = stem(unit, arch);
    let found = fs::read_dir(folder).ok()?.flatten().find(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(&stem) && name.ends_with(".cubin"))
    })?;
    fs::read(found.path()).ok().filter(|bytes| !bytes.is_empty())
}

/// The cubins of all units for `arch`, from `cache` or compiled, several at once, and kept there.
///
/// # Errors
/// `NoCompiler`, `OldLibrary` or `Compile`.
pub fn cubins(cache: Option<&Path>, arch: &str) -> Result<Vec<Vec<u8>>, CudaError> {
    let found: Vec<_> =
        UNITS.iter().map(|unit| cache.and_then(|folder| kept(folder, unit, arch))).collect();
    if found.iter().all(Option::is_some) {
        return Ok(found.into_iter().flatten().collect());
    }
    let compiler = Nvrtc::open(None)?;
    let made = |unit: &Unit, found: Option<Vec<u8>>| match found {
        Some(bytes) => Ok(bytes),
        None => {
            let bytes = compiler.compile(unit, arch)?.bytes;
            if let Some(folder) = cache {
                keep(&folder.join(file_name(unit, arch, &compiler.version())), &bytes);
            }
            Ok(bytes)
        }
    };
    std::thread::scope(|scope| {
        let made = &made;
        let jobs: Vec<_> = UNITS
            .iter()
            .zip(found)
            .map(|(unit, found)| scope.spawn(move || made(unit, found)))
            .collect();
        jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| unreachable!())).collect()
    })
}

/// Writes a cubin beside its place and moves it there; one that can't be kept is made again.
fn keep(path: &Path, bytes: &[u8]) {
    let beside: PathBuf = path.with_extension(format!("{}.part", std::process::id()));
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    if folder.and_then(|()| fs::write(&beside, bytes)).is_ok() {
        let _ = fs::rename(&beside, path);
    }
}

// SAFETY: nvrtc may be called from several threads, each with its own program.
unsafe impl Sync for Nvrtc {}
// SAFETY: a table of functions.
unsafe impl Send for Nvrtc {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cubins_name_changes_with_source_architecture_and_compiler() {
        let [a, b, ..] = UNITS;
        let name = file_name(&a, "sm_90", "13.0");
        assert!(name.ends_with("-rows-sm_90-13.0.cubin"), "{name}");
        for other in [
            file_name(&b, "sm_90", "13.0"),
            file_name(&a, "sm_80", "13.0"),
            file_name(&a, "sm_90", "12.9"),
            file_name(&Unit { parts: b.parts, ..a }, "sm_90", "13.0"),
        ] {
            assert_ne!(name, other);
        }
    }
}
