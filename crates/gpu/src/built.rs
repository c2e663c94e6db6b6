//! Kernels as a device takes them: modules, pipelines, their cache on disk, and bind groups.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::forms::{Forms, Unit};
use crate::planted::Defect;

/// Bind groups that are kept: more than a model of a hundred layers asks for.
const GROUPS_MAX: usize = 16_384;
/// Bytes of a pipeline cache that are read back.
const CACHE_BYTES_MAX: u64 = 64 << 20;

/// A kernel: its unit, its entry point and its pipeline constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) unit: Unit,
    pub(crate) entry: &'static str,
    pub(crate) constants: Vec<(&'static str, u32)>,
}

impl Kernel {
    pub(crate) fn new(unit: Unit, entry: &'static str) -> Self {
        Self { unit, entry, constants: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }
}

#[derive(Clone)]
pub(crate) struct Pipeline {
    number: usize,
    pub(crate) pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// A pipeline's number, and its bindings with their buffers' numbers.
type Bound = (usize, Vec<(u32, u64)>);

/// What is made of sources, as it is asked for.
pub(crate) struct Built {
    device: wgpu::Device,
    defect: Option<Defect>,
    #[cfg(not(target_vendor = "apple"))]
    modules: HashMap<(Unit, Forms), wgpu::ShaderModule>,
    pipelines: HashMap<(Kernel, Forms), Pipeline>,
    groups: HashMap<Bound, wgpu::BindGroup>,
    cache: Option<(wgpu::PipelineCache, PathBuf)>,
    /// Pipelines when the cache was last looked at, and when it was last written.
    seen: usize,
    written: usize,
}

impl Built {
    /// With a cache in a folder, where the adapter has one.
    pub(crate) fn new(
        device: wgpu::Device,
        info: &wgpu::AdapterInfo,
        defect: Option<Defect>,
        folder: Option<&Path>,
    ) -> Self {
        let cache = folder.and_then(|folder| cache(&device, info, folder));
        Self {
            device,
            defect,
            #[cfg(not(target_vendor = "apple"))]
            modules: HashMap::new(),
            pipelines: HashMap::new(),
            groups: HashMap::new(),
            cache,
            seen: 0,
            written: 0,
        }
    }

    pub(crate) fn pipeline(&mut self, kernel: &Kernel, forms: Forms) -> Pipeline {
        let key = (kernel.clone(), forms);
        if let Some(pipeline) = self.pipelines.get(&key) {
            return pipeline.clone();
        }
        let (pipeline, layout) = self.build(kernel, forms);
        let pipeline = Pipeline { number: self.pipelines.len(), pipeline, layout };
        self.pipelines.insert(key, pipeline.clone());
        pipeline
    }

    fn source(&self, unit: Unit, forms: Forms) -> String {
        let source = unit.source(forms);
        match self.defect {
            Some(defect) => defect.planted(unit, source),
            None => source,
        }
    }

    #[cfg(not(target_vendor = "apple"))]
    fn build(
        &mut self,
        kernel: &Kernel,
        forms: Forms,
    ) -> (wgpu::ComputePipeline, wgpu::BindGroupLayout) {
        let key = (kernel.unit, forms);
        if !self.modules.contains_key(&key) {
            let source = self.source(kernel.unit, forms);
            self.modules.insert(key, module(&self.device, kernel.unit, source));
        }
        let constants: Vec<(&str, f64)> =
            kernel.constants.iter().map(|&(name, value)| (name, f64::from(value))).collect();
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.entry),
            layout: None,
            module: &self.modules[&key],
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                // Every kernel writes its workgroup memory before it reads it.
                zero_initialize_workgroup_memory: false,
            },
            cache: self.cache.as_ref().map(|(cache, _)| cache),
        });
        let layout = pipeline.get_bind_group_layout(0);
        (pipeline, layout)
    }

    /// Translated by ourselves and passed through ([`crate::metal`]).
    #[cfg(target_vendor = "apple")]
    fn build(
        &mut self,
        kernel: &Kernel,
        forms: Forms,
    ) -> (wgpu::ComputePipeline, wgpu::BindGroupLayout) {
        let source = self.source(kernel.unit, forms);
        let msl = crate::Msl::translated(kernel, &source)
            .unwrap_or_else(|words| unreachable!("{kernel:?}, which tests translate: {words}"));
        let [x, y, z] = msl.workgroup;
        let entry = wgpu::PassthroughShaderEntryPoint {
            name: msl.entry.as_str().into(),
            workgroup_size: (x, y, z),
        };
        // SAFETY: our own kernels, as in `module`; slots are those that wgpu gives this layout.
        let module = unsafe {
            self.device.create_shader_module_passthrough(wgpu::ShaderModuleDescriptorPassthrough {
                label: Some(kernel.entry),
                entry_points: vec![entry].into(),
                msl: Some(msl.text.as_str().into()),
                ..Default::default()
            })
        };
        let entries: Vec<_> = msl
            .bindings
            .iter()
            .map(|&(binding, read_only)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let whole = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: msl.params_bytes,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.entry),
            layout: Some(&whole),
            module: &module,
            entry_point: Some(&msl.entry),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        (pipeline, layout)
    }

    /// The bind group of a pipeline over buffers by their bindings and numbers.
    pub(crate) fn group(
        &mut self,
        pipeline: &Pipeline,
        buffers: &[(u32, u64, &wgpu::Buffer)],
    ) -> wgpu::BindGroup {
        let bound = buffers.iter().map(|&(binding, number, _)| (binding, number)).collect();
        let key = (pipeline.number, bound);
        if let Some(group) = self.groups.get(&key) {
            return group.clone();
        }
        let entries: Vec<_> = buffers
            .iter()
            .map(|&(binding, _, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        });
        if self.groups.len() >= GROUPS_MAX {
            self.groups.clear();
        }
        self.groups.insert(key, group.clone());
        group
    }

    /// Lets go of every bind group: a buffer is gone, which they would keep in memory.
    pub(crate) fn forget(&mut self) {
        self.groups.clear();
    }

    /// Writes the pipelines to disk once none has been built for a while. A cache that can't be
    /// written is none.
    pub(crate) fn settle(&mut self) {
        let built = self.pipelines.len();
        let quiet = self.seen == built;
        self.seen = built;
        let Some((cache, path)) = &self.cache else { return };
        if !quiet || self.written == built {
            return;
        }
        self.written = built;
        let Some(data) = cache.get_data() else { return };
        let begun = path.with_extension(format!("{}.part", std::process::id()));
        let done = std::fs::write(&begun, data).and_then(|()| std::fs::rename(&begun, path));
        if done.is_err() {
            let _ = std::fs::remove_file(&begun);
        }
    }
}

#[cfg(not(target_vendor = "apple"))]
fn module(device: &wgpu::Device, unit: Unit, source: String) -> wgpu::ShaderModule {
    let desc = wgpu::ShaderModuleDescriptor {
        label: Some(&format!("{unit:?}")),
        source: wgpu::ShaderSource::Wgsl(source.into()),
    };
    // SAFETY: our own kernels, over counts that the host has checked: they stay inside their
    // buffers and local arrays, their loops end, and they divide by counts that are not 0.
    unsafe { device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked()) }
}

/// The pipelines that a former process built from the same sources with the same driver.
fn cache(
    device: &wgpu::Device,
    info: &wgpu::AdapterInfo,
    folder: &Path,
) -> Option<(wgpu::PipelineCache, PathBuf)> {
    if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        return None;
    }
    let key = wgpu::util::pipeline_cache_key(info)?;
    let mut hasher = DefaultHasher::new();
    (&info.name, &info.driver, &info.driver_info).hash(&mut hasher);
    Unit::ALL.iter().for_each(|unit| unit.source(Forms::DEVICE).hash(&mut hasher));
    Forms::CAREFUL.sources().hash(&mut hasher);
    std::fs::create_dir_all(folder).ok()?;
    let path = folder.join(format!("{key}-{:016x}.pipelines", hasher.finish()));
    let small = std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= CACHE_BYTES_MAX);
    let data = small.then(|| std::fs::read(&path).ok()).flatten();
    let desc = wgpu::PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
    // SAFETY: what `settle` wrote, under a name of its adapter, driver and sources; wgpu and the
    // driver check its header, and begin with an empty one where it is not theirs.
    Some((unsafe { device.create_pipeline_cache(&desc) }, path))
}
