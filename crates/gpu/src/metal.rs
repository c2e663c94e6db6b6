//! Kernels for Metal. wgpu gives its translation to Metal's compiler with that one's defaults,
//! among them fast math, and has no option for it. So on Apple's systems kernels are translated
//! here, headed by pragmas that turn it off, and passed through.

use naga::back::pipeline_constants::process_overrides;
use naga::back::{PipelineConstants, msl};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, GlobalVariable, Handle, Module, ShaderStage, StorageAccess, TypeInner};

use crate::built::Kernel;
use crate::forms::{Forms, Unit};

/// What stands before every kernel: nothing is contracted, reordered or taken to be a number. Older
/// compilers warn of what they do not know.
const PRAGMAS: &str = "\
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
#pragma clang fp reassociate(off)
";

/// A kernel in Metal's language.
#[derive(Clone, Debug)]
pub struct Msl {
    /// The source.
    pub text: String,
    /// The function.
    pub entry: String,
    /// Threads of a workgroup.
    pub workgroup: [u32; 3],
    /// Bindings in their order, each with whether it is only read: buffers 1 and on. Buffer 0 holds
    /// the parameters.
    pub bindings: Vec<(u32, bool)>,
    /// Bytes of the parameters.
    pub params_bytes: u32,
}

impl Msl {
    /// Translates one entry point of a unit.
    ///
    /// # Errors
    /// What the translator refuses, in its words.
    #[doc(hidden)]
    pub fn of(
        unit: Unit,
        forms: Forms,
        entry: &'static str,
        constants: &[(&'static str, u32)],
    ) -> Result<Self, String> {
        let kernel = Kernel { unit, entry, constants: constants.to_vec() };
        Self::translated(&kernel, &unit.source(forms))
    }

    pub(crate) fn translated(kernel: &Kernel, source: &str) -> Result<Self, String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let module = naga::front::wgsl::parse_str(source).map_err(|e| words(&e))?;
        let info = Validator::new(ValidationFlags::all(), Capabilities::IMMEDIATES)
            .validate(&module)
            .map_err(|e| words(&e))?;
        let mut constants = PipelineConstants::default();
        for &(name, value) in &kernel.constants {
            constants.insert(name.to_owned(), f64::from(value));
        }
        let entry = (ShaderStage::Compute, kernel.entry);
        let (module, info) =
            process_overrides(&module, &info, Some(entry), &constants).map_err(|e| words(&e))?;
        let at = module.entry_points.iter().position(|point| point.name == kernel.entry);
        let at = at.ok_or_else(|| format!("no entry point {}", kernel.entry))?;
        let used = info.get_entry_point(at);
        let used = |handle: Handle<GlobalVariable>| !used[handle].is_empty();
        let (mut bindings, params_bytes) = interface(&module, used);
        bindings.sort_unstable();
        let options = options(kernel.entry, &bindings);
        let pipeline = msl::PipelineOptions {
            entry_point: Some((ShaderStage::Compute, kernel.entry.to_owned())),
            ..Default::default()
        };
        let (text, names) =
            msl::write_string(&module, &info, &options, &pipeline).map_err(|e| words(&e))?;
        let name = names.entry_point_names.into_iter().next().ok_or("no entry point written")?;
        let entry = name.map_err(|e| words(&e))?;
        let text = format!("{PRAGMAS}{}", with_own_memory(&text, &entry));
        let workgroup = module.entry_points[at].workgroup_size;
        Ok(Self { text, entry, workgroup, bindings, params_bytes })
    }
}

/// The bindings that an entry point uses, and the bytes of its parameters.
fn interface(
    module: &Module,
    used: impl Fn(Handle<GlobalVariable>) -> bool,
) -> (Vec<(u32, bool)>, u32) {
    let (mut bindings, mut params_bytes) = (Vec::new(), 0);
    for (_, variable) in module.global_variables.iter().filter(|(handle, _)| used(*handle)) {
        match (variable.space, &variable.binding) {
            (AddressSpace::Storage { access }, Some(binding)) => {
                bindings.push((binding.binding, !access.contains(StorageAccess::STORE)));
            }
            (AddressSpace::Immediate, _) => {
                if let TypeInner::Struct { span, .. } = module.types[variable.ty].inner {
                    params_bytes = span;
                }
            }
            _ => {}
        }
    }
    (bindings, params_bytes)
}

/// Slots as wgpu gives them: parameters, then bindings in their order, then their sizes.
fn options(entry: &str, bindings: &[(u32, bool)]) -> msl::Options {
    let mut resources = msl::EntryPointResources {
        immediates_buffer: Some(0),
        sizes_buffer: Some(1 + bindings.len() as u8),
        ..Default::default()
    };
    for (slot, &(binding, reads)) in (1..).zip(bindings) {
        let target = msl::BindTarget { buffer: Some(slot), mutable: !reads, ..Default::default() };
        resources.resources.insert(naga::ResourceBinding { group: 0, binding }, target);
    }
    msl::Options {
        lang_version: (2, 4),
        per_entry_point_map: [(entry.to_owned(), resources)].into(),
        fake_missing_bindings: false,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    }
}

/// Moves a kernel's workgroup memory from its arguments into its body: what is passed through has
/// nobody who would tell Metal how much the arguments need.
fn with_own_memory(text: &str, entry: &str) -> String {
    let (mut out, mut memory, mut inside) = (String::new(), Vec::new(), false);
    let head = format!("kernel void {entry}(");
    for line in text.lines() {
        inside |= line.contains(&head);
        let argument = line.trim_start_matches([',', ' ']);
        match argument.strip_prefix("threadgroup ") {
            Some(rest) if inside => memory.push(rest.replacen('&', "", 1)),
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
        if inside && line.starts_with(") {") {
            inside = false;
            memory.drain(..).for_each(|one| out.push_str(&format!("    threadgroup {one};\n")));
        }
    }
    out
}
