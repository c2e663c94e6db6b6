//! Kernel sources, their compilation, and the cubins that are kept of them.
//!
//! A cubin's name says what it was made of: a digest of source and options, the architecture and
//! the compiler. One of another compiler serves as well, so that a machine without a compiler runs
//! what another one left.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::CudaError;
use crate::library::{Compiler, Handle};

/// A source that is compiled as one.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// Its parts, in order.
    pub parts: &'static [&'static str],
    /// Its kernels.
    pub kernels: &'static [&'static str],
    /// Bytes of shared memory that each is launched with; none if empty.
    pub shared: &'static [u32],
    /// Those that most time is spent in: a register that spills there fails `cargo xtask kernels`.
    pub hot: &'static [&'static str],
}

const PRELUDE: &str = include_str!("../kernels/prelude.cu");
const LAYOUT: &str = include_str!("../kernels/layout.cu");
const PRODUCTS: &str = include_str!("../kernels/products.cu");
const CACHE: &str = include_str!("../kernels/cache.cu");

/// Every source.
pub const UNITS: [Unit; 10] = [
    Unit {
        name: "rows",
        parts: &[PRELUDE, include_str!("../kernels/rows.cu")],
        kernels: &["rms_norm", "head_norm", "rope", "add", "silu_mul", "gate", "gates"],
        shared: &[],
        hot: &["rms_norm", "head_norm", "silu_mul", "add", "gate"],
    },
    Unit {
        name: "attention",
        parts: &[PRELUDE, CACHE, include_str!("../kernels/attention.cu")],
        kernels: &["kv_write", "attend", "merge"],
        shared: &[],
        hot: &[],
    },
    Unit {
        name: "tiles",
        parts: &[PRELUDE, CACHE, include_str!("../kernels/tiles.cu")],
        kernels: &["attend_tile", "merge_tiles"],
        shared: &[73_728, 0],
        hot: &["attend_tile", "merge_tiles"],
    },
    Unit {
        name: "prompt",
        parts: &[PRELUDE, CACHE, include_str!("../kernels/prompt.cu")],
        kernels: &["attend_rows_64", "attend_rows_128", "attend_rows_256"],
        shared: &[68_096, 117_248, 215_552],
        hot: &["attend_rows_64", "attend_rows_128", "attend_rows_256"],
    },
    Unit {
        name: "gdn",
        parts: &[PRELUDE, include_str!("../kernels/gdn.cu")],
        kernels: &["convolve", "tail", "l2_norm", "delta_32", "delta_64", "delta_128", "delta_256"],
        shared: &[],
        hot: &["convolve", "l2_norm", "delta_64", "delta_128"],
    },
    Unit {
        name: "pack",
        parts: &[PRELUDE, LAYOUT, include_str!("../kernels/pack.cu")],
        kernels: &[
            "pack_codes",
            "pack_scales",
            "transpose",
            "widen",
            "noise",
            "embed",
            "embed_floats",
            "linear_floats",
        ],
        shared: &[],
        hot: &[],
    },
    Unit {
        name: "linear",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, include_str!("../kernels/linear.cu")],
        kernels: &[
            "quantise",
            "linear_nibbles_2",
            "linear_nibbles_4",
            "linear_bytes_2",
            "linear_bytes_4",
            "linear_nibbles_bf16_64_2",
            "linear_nibbles_bf16_64_4",
            "linear_nibbles_f16_32_2",
            "linear_nibbles_f16_32_4",
            "linear_nibbles_k_32_2",
            "linear_nibbles_k_32_4",
        ],
        shared: &[],
        hot: &["quantise"],
    },
    Unit {
        name: "one",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, include_str!("../kernels/one.cu")],
        kernels: &["one_nibbles_bf16_64", "one_nibbles_f16_32", "one_nibbles_k_32"],
        shared: &[55_296, 61_440, 55_296],
        hot: &["one_nibbles_bf16_64", "one_nibbles_f16_32", "one_nibbles_k_32"],
    },
    Unit {
        name: "few",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, include_str!("../kernels/few.cu")],
        kernels: &["few_nibbles_bf16_64", "few_nibbles_f16_32", "few_nibbles_k_32"],
        shared: &[73_728, 81_920, 73_728],
        hot: &["few_nibbles_bf16_64", "few_nibbles_f16_32", "few_nibbles_k_32"],
    },
    Unit {
        name: "gemm",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, include_str!("../kernels/gemm.cu")],
        kernels: &["gemm_nibbles_bf16_64", "gemm_nibbles_f16_32", "gemm_nibbles_k_32"],
        shared: &[105_984, 113_664, 107_520],
        hot: &[],
    },
];

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
        self.compile_text(unit.name, &unit.parts.concat(), arch)
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

/// A source with one defect, for tests that must turn red.
#[derive(Clone, Copy, Debug)]
pub struct Defect {
    /// What it is.
    pub name: &'static str,
    unit: &'static str,
    /// What stands in the source, once at least, and what stands there instead.
    swap: [&'static str; 2],
}

/// Defects that the conformance suite must catch on the card.
pub const DEFECTS: [Defect; 21] = [
    defect(
        "another row's scale",
        "few",
        "row_mine[j] ? d[row * TILE_ROWS] : 0.0f",
        "row_mine[j] ? d[row * TILE_ROWS - t] : 0.0f",
    ),
    defect(
        "a tile of outputs taken twice",
        "few",
        "min(ntile + n, tiles - 1)",
        "min(ntile + n / 2, tiles - 1)",
    ),
    defect(
        "blocks of a slice out of order",
        "one",
        "both[i][0] = __shfl_sync(FULL, dot[set][0], i, 4);",
        "both[i][0] = __shfl_sync(FULL, dot[set][0], 3 - i, 4);",
    ),
    defect(
        "a tile left out of the merge",
        "tiles",
        "for (int i = 1; i < CHUNK_TILES; i++) {",
        "for (int i = 2; i < CHUNK_TILES; i++) {",
    ),
    defect(
        "chunks joined as tiles",
        "tiles",
        "from + i == 0 ? o : __fmaf_rn(total, f.x, __fmul_rn(o, f.y))",
        "from + i == 0 ? o : __fadd_rn(__fmul_rn(total, f.x), __fmul_rn(o, f.y))",
    ),
    defect(
        "a dropped slice",
        "linear",
        "group_start(group + 1, slices); s++",
        "group_start(group + 1, slices) - 1; s++",
    ),
    defect(
        "a swapped tree",
        "linear",
        "__fadd_rn(__fadd_rn(g[0], g[stride])",
        "__fadd_rn(__fadd_rn(g[0], g[2 * stride])",
    ),
    defect(
        "an unfused product",
        "linear",
        "__fmaf_rn(dot, low.x, acc[0])",
        "__fadd_rn(__fmul_rn(dot, low.x), acc[0])",
    ),
    defect("one byte plane", "linear", "c[0] * 256 + c[1]", "c[0] * 256"),
    defect(
        "a tie away from even",
        "linear",
        "float y = round_half_even(__fmul_rn(v[h][i], inv));",
        "float y = roundf(__fmul_rn(v[h][i], inv));",
    ),
    defect(
        "an unflushed product",
        "rows",
        "flushed(__fmul_rn(silu_f32(p.x[i]), p.y[i]))",
        "__fmul_rn(silu_f32(p.x[i]), p.y[i])",
    ),
    defect(
        "an unfolded lane",
        "rows",
        "int w = 16; w > 0; w /= 2) lane",
        "int w = 16; w > 1; w /= 2) lane",
    ),
    defect(
        "an unrounded key",
        "attention",
        "((u16 *)c.k)[kt] = float_to_half(p.k[i])",
        "((u16 *)c.k)[kt] = float_to_half(p.k[i]) & 0xfffeu",
    ),
    defect(
        "a hidden key seen",
        "attention",
        "int visible = c.positions[row] + 1",
        "int visible = c.positions[row] + 2",
    ),
    defect(
        "tiles merged as one chunk",
        "attention",
        "#define CHUNK_TILES 8",
        "#define CHUNK_TILES 16",
    ),
    defect(
        "chunks merged backwards",
        "prompt",
        "__fmaf_rn(all_o[g][i][j], f1, __fmul_rn(x, f2))",
        "__fmaf_rn(all_o[g][i][j], f2, __fmul_rn(x, f1))",
    ),
    defect(
        "keys past the row's",
        "prompt",
        "int seen = first + mine - tile * TILE_KEYS + 1;",
        "int seen = first + mine - tile * TILE_KEYS + 2;",
    ),
    defect(
        "groups that join in another order",
        "gemm",
        "for (int under = 0; under < level; under++) {",
        "for (int under = level - 1; under >= 0; under--) {",
    ),
    defect(
        "a stage read too early",
        "gemm",
        "stages[ktile % STAGES];",
        "stages[(ktile + 1) % STAGES];",
    ),
    defect(
        "a stale tail",
        "gdn",
        "int at = walk.end - before + j;",
        "int at = walk.end - 1 - before + j;",
    ),
    defect(
        "decay after the update",
        "gdn",
        "s[i] = flushed(__fmul_rn(s[i], decay));",
        "if (row > walk.first) s[i] = flushed(__fmul_rn(s[i], decay));",
    ),
];

const fn defect(
    name: &'static str,
    unit: &'static str,
    from: &'static str,
    to: &'static str,
) -> Defect {
    Defect { name, unit, swap: [from, to] }
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
        let source = unit.parts.concat();
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
        let shared: &[&str] = match unit.name {
            "attention" | "tiles" | "prompt" => &["cache"],
            "pack" => &["layout"],
            "linear" | "one" | "few" | "gemm" => &["layout", "products"],
            _ => &[],
        };
        let mut source = String::new();
        for part in ["prelude"].iter().chain(shared).chain([&unit.name]) {
            let path = folder.join(part).with_extension("cu");
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
    unit.parts.iter().for_each(|part| hash.update(part));
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
    fn every_defect_finds_its_place() {
        for Defect { name, unit, swap: [from, to] } in DEFECTS {
            let unit = UNITS.iter().find(|u| u.name == unit).unwrap_or_else(|| panic!("{name}"));
            assert!(unit.parts.concat().contains(from) && from != to, "{name}");
        }
    }

    #[test]
    fn a_cubins_name_changes_with_source_architecture_and_compiler() {
        let [a, b, ..] = UNITS;
        let name = file_name(&a, "sm_90", "13.0");
        assert!(name.ends_with("-rows-sm_90-13.0.cubin"), "{name}");
        for other in [
            file_name(&b, "sm_90", "13.0"),
            file_name(&a, "sm_80", "13.0"),
            file_name(&a, "sm_90", "12.9"),
            file_name(&Unit { parts: &["x"], ..a }, "sm_90", "13.0"),
        ] {
            assert_ne!(name, other);
        }
    }
}
