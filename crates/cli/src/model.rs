//! A checkpoint and the settings that every rank of a ring must share.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use arith::attention::KvDtype;
use arith::base::{Arith, Rank};
use arith::format::Format;
use ring::boot::BootTimes;
use ring::canary::Canary;
use ring::follow::Follower;
use ring::head::Driver;
use ring::join::Join;
use ring::lead::{Leader, ModelFacts};
use sched::{Caching, Drafters};
use sha2::{Digest, Sha256};
use shard::Through;
use stage::StageConfig;
use weights::Checkpoint;
use wire::control::{Describe, Shapes};
use wire::describe::{ARITH_OWN, RowDtype};
use wire::fingerprint::Fields;
use wire::layout::Layout;

use crate::contents::Contents;
use crate::device::{self, Device, Seat};
use crate::source;

mod load;
mod need;

pub use load::split_of;

/// The engine's version, equal on every rank.
pub const ENGINE: &str = env!("CARGO_PKG_VERSION");
/// Context when none is asked for and the model allows more.
const CONTEXT_DEFAULT: u32 = 8_192;
/// Most memory of a rank's prompt cache.
const GIB_MAX: f64 = 4096.0;
const GIB: f64 = (1u64 << 30) as f64;
/// Most KV pages of the prompt cache alone: a million tokens.
const CACHE_PAGES_MAX: u32 = 1 << 14;
/// Free memory that a rank leaves to the rest of the machine.
pub const MEMORY_FLOOR_BYTES: u64 = 256 << 20;

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Ranks, where no layout is given.
    pub world: u32,
    /// Who holds what.
    pub layout: Option<String>,
    /// The function that the ring computes.
    pub arith: Arith,
    /// Whether ranks may compute functions of their own.
    pub own_arith: bool,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// What ranks compute on: rank r on the r-th, begun again where there are fewer.
    pub devices: Vec<Device>,
    /// Most positions of a stream.
    pub context: Option<u32>,
    /// Most streams at once.
    pub streams: u32,
    /// Most prompt rows of one stream in a round.
    pub chunk: u32,
    /// Rounds in flight; what the world needs where nothing is said.
    pub depth: Option<u32>,
    /// Seconds that requests wait for a ring that broke.
    pub continue_s: u32,
    /// Most requests waiting.
    pub queue: u32,
    /// Memory of each rank for kept prompts, in GiB; `None` for what is free anyway.
    pub prompt_cache_gib: Option<f64>,
    /// Who guesses tokens ahead.
    pub drafters: Drafters,
    /// What the draft head's matrices are stored in; as the file has them unless said.
    pub draft_head: Option<Format>,
    /// Boundary through the wire codec after every layer (one process).
    pub loop_mode: bool,
    /// What the members of a group exchange through.
    pub through: Through,
    /// Whether a group's leader compares all members' tables after every step.
    pub compares: bool,
    /// Whether a group's prompts may go in pairs.
    pub prompt_pair: bool,
    /// A defect in one rank, to see checks turn red.
    #[cfg(test)]
    pub fault: Option<(Rank, stage::Fault)>,
    /// A fault of the driver in every GPU.
    #[cfg(all(test, feature = "gpu"))]
    pub defect: Option<gpu::Defect>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            world: 1,
            layout: None,
            arith: Arith::One,
            own_arith: false,
            kv: KvDtype::F16,
            devices: vec![Device::Cpu],
            context: None,
            streams: 8,
            chunk: 512,
            depth: None,
            continue_s: 0,
            queue: 64,
            prompt_cache_gib: Some(0.0),
            drafters: Drafters { copy: true, mtp: true, reach: None },
            draft_head: None,
            loop_mode: false,
            through: Through::Auto,
            compares: false,
            prompt_pair: true,
            #[cfg(test)]
            fault: None,
            #[cfg(all(test, feature = "gpu"))]
            defect: None,
        }
    }
}

impl Settings {
    /// Rounds in flight of a ring of `world`: one a stage, and one more on its way, so that no
    /// stage waits for a hop. One rank alone has nothing to overlap.
    #[must_use]
    pub fn depth(&self, world: u32) -> u32 {
        let needed = if world == 1 { 1 } else { world + 1 };
        self.depth.unwrap_or(needed.min(wire::limit::DEPTH_MAX))
    }

    /// The shapes of a ring with these settings.
    ///
    /// # Errors
    /// A size outside its limits, by its flag.
    pub fn shapes(&self, model_context_max: u32) -> Result<Shapes> {
        let context_max = self.context.unwrap_or(CONTEXT_DEFAULT.min(model_context_max));
        if context_max > model_context_max {
            bail!("--context {context_max}: the model was made for {model_context_max} at most");
        }
        ensure!(context_max >= 16, "--context {context_max}: at least 16");
        ensure!((1..=1024).contains(&self.streams), "--streams {}: 1 to 1024", self.streams);
        ensure!((1..=4096).contains(&self.chunk), "--chunk {}: 1 to 4096", self.chunk);
        if let Some(gib) = self.prompt_cache_gib {
            let gibs = 0.0..=GIB_MAX;
            ensure!(gibs.contains(&gib), "--prompt-cache-gib {gib}: 0 to {GIB_MAX}");
        }
        let depths = 1..=wire::limit::DEPTH_MAX;
        if let Some(depth) = self.depth {
            ensure!(depths.contains(&depth), "--depth {depth}: 1 to {}", depths.end());
        }
        let pages = placement::pages(context_max, self.streams);
        Ok(Shapes {
            chunk_rows_max: self.chunk,
            round_rows_max: self.chunk + self.streams,
            streams_max: self.streams,
            context_max,
            pages,
        })
    }
}

/// A checkpoint under agreed settings.
pub struct Model {
    /// The weights, in their file.
    pub checkpoint: Checkpoint,
    /// Who holds what.
    pub layout: Layout,
    /// The user's choices.
    pub settings: Settings,
    /// Shapes that follow from them.
    pub shapes: Shapes,
    /// Most bytes of recurrent states that a rank keeps for other prompts.
    keep_bytes_max: u64,
}

impl Model {
    /// Opens the checkpoint and settles the layout and the shapes.
    ///
    /// # Errors
    /// What is wrong with the file, the layout or a setting.
    pub fn open(path: &Path, settings: Settings) -> Result<Self> {
        let checkpoint = Checkpoint::open(path)?;
        let layers = checkpoint.config().layers();
        let layout = match &settings.layout {
            Some(text) => Layout::parse(text)?,
            None => Layout::even(layers, settings.world)?,
        };
        layout.check(layers)?;
        let shapes = settings.shapes(checkpoint.config().context_max())?;
        let mut model = Self { checkpoint, layout, settings, shapes, keep_bytes_max: 0 };
        model.share_cache()?;
        Ok(model)
    }

    /// Shares the prompt cache's memory out: KV pages beside those of the streams, as many as the
    /// rank with the widest pages can have, and recurrent states, which get half of it where there
    /// are any.
    fn share_cache(&mut self) -> Result<()> {
        let Some(gib) = self.settings.prompt_cache_gib else {
            self.keep_bytes_max = stage::KEEP_BYTES_MAX;
            return Ok(());
        };
        let bytes = (gib * GIB) as u64;
        let (mut page_bytes, mut has_states) = (1, false);
        for rank in (0..self.layout.world()).map(Rank) {
            // A group's first member has no fewer heads than another.
            page_bytes = page_bytes.max(self.page_bytes(rank, 0)?);
            let one = self.need(rank, 0, &self.shapes)?;
            has_states |= one.state_bytes > 0;
        }
        self.keep_bytes_max = if has_states { bytes / 2 } else { 0 };
        let pages = (bytes - self.keep_bytes_max) / page_bytes;
        let pages = u32::try_from(pages).unwrap_or(u32::MAX).min(CACHE_PAGES_MAX);
        self.shapes.pages = self.shapes.pages.saturating_add(pages);
        Ok(())
    }

    /// What rank 0 keeps of prompts.
    fn caching(&self) -> Caching {
        match self.settings.prompt_cache_gib {
            Some(0.0) => Caching::OFF,
            _ => Caching::default(),
        }
    }

    /// The name that clients see.
    pub fn name(&self) -> String {
        self.checkpoint.name()
    }

    /// What two ranks must share, by name; its digest rides in the hello.
    ///
    /// # Errors
    /// A name or value beyond the fingerprint's limits.
    pub fn fingerprint(&self) -> Result<Fields> {
        let mut fields = self.bits()?;
        fields.put("layout", self.layout.to_string())?;
        Ok(fields)
    }

    /// The digest of shapes, formats and settings: models that share it take the same times.
    ///
    /// # Errors
    /// A name or value beyond the fingerprint's limits.
    pub fn digest(&self) -> Result<String> {
        Ok(source::hex(&self.bits()?.digest()))
    }

    /// All that a reply's bytes may depend on.
    fn bits(&self) -> Result<Fields> {
        let mut fields = Fields::new();
        fields.put("protocol", wire::limit::VERSION.to_string())?;
        fields.put("arith", self.settings.arith.to_string())?;
        fields.put("engine", ENGINE)?;
        for (name, value) in self.checkpoint.config().fields() {
            fields.put(format!("config.{name}"), value)?;
        }
        fields.put("row_dtype", RowDtype::F32.name())?;
        fields.put("planes", "1")?;
        fields.put("kv", self.settings.kv.name())?;
        for tensor in self.checkpoint.tensors() {
            fields.put(format!("tensor.{}", tensor.name), tensor.kind())?;
        }
        Ok(fields)
    }

    /// Opens what `member` of `rank` computes on.
    ///
    /// # Errors
    /// What is missing on this machine.
    pub fn seat(&self, rank: Rank, member: usize, threads: usize) -> Result<Seat> {
        let Settings { arith, own_arith, .. } = self.settings;
        let device = self.device(rank, member);
        #[cfg(all(test, feature = "gpu"))]
        if let (Device::Gpu(ordinal), Some(defect)) = (device, self.settings.defect) {
            return Ok(Seat::Gpu(Arc::new(gpu::Gpu::with_defect(ordinal, defect, own_arith)?)));
        }
        device.open(threads, arith, own_arith)
    }

    /// What `member` of `rank` computes on.
    pub fn device(&self, rank: Rank, member: usize) -> Device {
        device::of(&self.settings.devices, &self.layout, rank, member)
    }

    /// The range of `rank`.
    ///
    /// # Errors
    /// A rank outside the layout.
    pub fn range(&self, rank: Rank) -> Result<Range<u32>> {
        let world = self.layout.world();
        ensure!(rank.0 < world, "rank {rank}: the layout {} has ranks 0..{world}", self.layout);
        Ok(self.layout.range(rank))
    }

    /// What `rank` says of itself and of the `contents` that it holds.
    fn describe(&self, rank: Rank, seat: &Seat, contents: Contents) -> Result<Describe> {
        let range = self.range(rank)?;
        let hidden = u32::try_from(self.checkpoint.config().hidden())?;
        Ok(Describe {
            rank,
            world: self.layout.world(),
            engine: ENGINE.into(),
            backend: seat.name().into(),
            arith: match seat.own_arith() {
                None => self.settings.arith.number(),
                Some(_) => ARITH_OWN,
            },
            device: seat.device(),
            range,
            hidden,
            planes: 1,
            row_dtype: RowDtype::F32,
            kv: self.settings.kv,
            shapes: self.shapes,
            states: self.shapes.streams_max,
            taps: Vec::new(),
            drafter_width: 0,
            layers: contents.layers,
            ends: contents.ends,
            layer_us: None,
        })
    }

    /// What the stage of `rank` is opened with.
    ///
    /// # Errors
    /// A rank outside the layout.
    pub fn stage_config(&self, rank: Rank) -> Result<StageConfig> {
        Ok(StageConfig {
            range: self.range(rank)?,
            ends: rank.0 == 0,
            kv: self.settings.kv,
            loop_mode: self.settings.loop_mode,
        })
    }

    /// Rank 0 of this ring.
    ///
    /// # Errors
    /// A tensor that can't be read or that the file was cut without.
    pub fn leader<J: Join>(&self, seat: &Seat, join: J, driver: Driver) -> Result<Leader<J>> {
        let (range, layers) = (self.range(Rank(0))?, self.checkpoint.config().layers());
        let read = |range| Contents::read(&self.checkpoint, Rank(0), range, true);
        let (own, whole) = match Contents::by_manifest(&self.checkpoint)? {
            Some(whole) => (read(range)?, whole),
            None => {
                let whole = read(0..layers)?;
                let own = whole.layers[..range.end as usize].to_vec();
                (Contents { layers: own, ends: whole.ends }, whole)
            }
        };
        let describe = self.describe(Rank(0), seat, own)?;
        let model = ModelFacts { layers, layer_digests: whole.layers, ends: whole.ends };
        let canary = self.canary(&model)?;
        Ok(Leader {
            describe,
            layout: self.layout.clone(),
            model,
            shapes: self.shapes,
            depth: self.settings.depth(self.layout.world()),
            mixed: self.settings.own_arith,
            patience: Duration::from_secs(self.settings.continue_s.into()),
            times: BootTimes::default(),
            queue_max: self.settings.queue,
            caching: self.caching(),
            drafters: self.settings.drafters,
            canary,
            join,
            driver,
        })
    }

    /// Any other rank.
    ///
    /// # Errors
    /// A rank outside the layout; a tensor that can't be read or that the file was cut without.
    pub fn follower<J: Join>(&self, rank: Rank, seat: &Seat, join: J) -> Result<Follower<J>> {
        let contents = Contents::read(&self.checkpoint, rank, self.range(rank)?, false)?;
        Ok(Follower {
            describe: self.describe(rank, seat, contents)?,
            world: self.layout.world(),
            times: BootTimes::default(),
            join,
            stop: Arc::default(),
        })
    }

    /// A few tokens, and where the hash of their reply is kept between starts.
    fn canary(&self, model: &ModelFacts) -> Result<Canary> {
        let vocab = u32::try_from(self.checkpoint.config().vocab())?;
        let mut hash = Sha256::new();
        hash.update(self.bits()?.digest());
        model.layer_digests.iter().for_each(|d| hash.update(d));
        if let Some(ends) = model.ends {
            hash.update(ends.embedding);
            hash.update(ends.head);
        }
        let name = source::hex(&hash.finalize());
        let folder: Option<PathBuf> = source::cache_dir().ok().map(|d| d.join("canary"));
        Ok(Canary {
            prompt: (1..=5).map(|id| id * 7 % vocab).collect(),
            expected: None,
            // What a device's own function gives is no reference for another.
            kept_at: folder.filter(|_| !self.settings.own_arith).map(|f| f.join(name)),
        })
    }
}
