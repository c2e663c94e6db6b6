//! A layer range of a real model on a device.

use std::ops::Range;
use std::sync::Arc;

use arith::attention::KvDtype;
use arith::base::StreamId;
use backend::{Backend, RowAt, RowMap};
use weights::Checkpoint;
use wire::plan::Plan;

use crate::model::{self, Need, Part, Program, Sizes};
use crate::slots::{Effects, Slots};
use crate::{Engine, Input, Shapes, SlotState, StageError};

/// Most rows that pass through the layers at once; a larger round runs in pieces. Bounds the row
/// buffers, never bits.
pub const PIECE_ROWS_MAX: usize = 512;
/// Most rows that the head takes at once; bounds the logits buffer.
pub const HEAD_ROWS_MAX: usize = 32;

/// What a stage holds and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageConfig {
    /// Layers, half-open.
    pub range: Range<u32>,
    /// Whether it holds the embeddings, the final norm and the head (rank 0).
    pub ends: bool,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// Sends the rows through the boundary's codec after every layer, as if each layer were a
    /// rank of its own.
    pub loop_mode: bool,
}

impl StageConfig {
    fn part(&self) -> Part {
        Part { range: self.range.clone(), ends: self.ends, kv: self.kv }
    }
}

/// A stage: see [`Engine`].
pub struct Stage<B> {
    backend: Arc<B>,
    program: Box<dyn Program>,
    config: StageConfig,
    hidden: usize,
    vocab: usize,
    sizes: Option<Sizes>,
    slots: Slots,
    held: Vec<bool>,
    /// Rows of a piece on their way in or out.
    scratch: Vec<f32>,
    #[cfg(any(test, feature = "faults"))]
    plant: crate::fault::Plant,
}

impl<B: Backend> Stage<B> {
    /// Loads the range, and nothing else of the checkpoint.
    pub fn open(
        backend: Arc<B>,
        checkpoint: &Checkpoint,
        config: StageConfig,
    ) -> Result<Self, StageError> {
        let model = checkpoint.config();
        check_range(model.layers(), &config.range)?;
        let program = model::open(backend.clone(), checkpoint, &config.part())?;
        Ok(Self {
            backend,
            program,
            hidden: model.hidden(),
            vocab: if config.ends { model.vocab() } else { 0 },
            config,
            sizes: None,
            slots: Slots::default(),
            held: Vec::new(),
            scratch: Vec::new(),
            #[cfg(any(test, feature = "faults"))]
            plant: crate::fault::Plant::default(),
        })
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What the stage was opened with.
    pub fn config(&self) -> &StageConfig {
        &self.config
    }

    /// Plants a defect from the next round on.
    #[cfg(any(test, feature = "faults"))]
    #[doc(hidden)]
    pub fn plant(&mut self, fault: crate::Fault) {
        self.plant = crate::fault::Plant::new(fault);
    }

    fn apply(&mut self, plan: &Plan) -> Result<Effects, StageError> {
        #[cfg(any(test, feature = "faults"))]
        let plan = &*self.plant.before(plan, &self.slots);
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut, reason = "planting"))]
        let mut effects = self.slots.apply(plan)?;
        #[cfg(any(test, feature = "faults"))]
        self.plant.after(&mut effects, &mut self.slots);
        Ok(effects)
    }

    /// Runs the rows `piece` of the round, those of skipped streams left out.
    fn run(&mut self, effects: &Effects, piece: Range<usize>, input: Input<'_>, out: &mut [f32]) {
        let hidden = self.hidden;
        let skipped = |row: &RowAt| effects.spans[row.table].skipped;
        let live: Vec<usize> = piece.filter(|&row| !skipped(&effects.map.rows[row])).collect();
        if live.is_empty() {
            return;
        }
        match input {
            Input::Tokens(ids) => {
                let ids: Vec<u32> = live.iter().map(|&row| ids[row]).collect();
                self.program.embed(&ids);
            }
            Input::Rows(rows) => {
                self.scratch.clear();
                for &row in &live {
                    self.scratch.extend_from_slice(&rows[row * hidden..(row + 1) * hidden]);
                }
                self.program.load(&self.scratch);
            }
        }
        let rows = live.iter().map(|&row| effects.map.rows[row]).collect();
        self.layers(RowMap { rows, tables: effects.map.tables.clone() });
        self.scratch.resize(live.len() * hidden, 0.0);
        self.program.store(&mut self.scratch);
        for (&row, values) in live.iter().zip(self.scratch.chunks_exact(hidden)) {
            out[row * hidden..(row + 1) * hidden].copy_from_slice(values);
        }
    }

    fn layers(&mut self, map: RowMap) {
        let rows = map.rows.len();
        self.program.begin(map);
        for layer in self.config.range.clone() {
            #[cfg(any(test, feature = "faults"))]
            if self.plant.skips(layer) {
                continue;
            }
            self.program.layer(layer);
            if self.config.loop_mode {
                self.cross(rows);
            }
        }
    }

    /// Takes the residual over a boundary and back.
    fn cross(&mut self, rows: usize) {
        self.scratch.resize(rows * self.hidden, 0.0);
        self.program.store(&mut self.scratch);
        let bytes = wire::rows::encode(&self.scratch);
        wire::rows::decode_into(&bytes, rows, self.hidden, &mut self.scratch)
            .expect("a row's own encoding decodes");
        self.program.load(&self.scratch);
    }

    /// Runs every kernel once over a row that belongs to no stream.
    fn warm(&mut self) {
        let row = vec![0.0; self.hidden];
        if self.config.ends {
            self.program.embed(&[0]);
            self.program.head(&row, &mut vec![0.0; self.vocab]);
        }
        self.program.load(&row);
        let rows = vec![RowAt { table: 0, position: 0 }];
        self.layers(RowMap { rows, tables: vec![Arc::from([0])] });
    }
}

impl<B: Backend> Engine for Stage<B> {
    fn hidden(&self) -> usize {
        self.hidden
    }

    fn vocab(&self) -> usize {
        self.vocab
    }

    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError> {
        let sizes = sizes(shapes)?;
        if self.sizes != Some(sizes) {
            self.sizes = None;
            self.slots = Slots::default();
            self.program.allocate(sizes)?;
            self.sizes = Some(sizes);
        }
        self.slots = Slots::new(*shapes);
        self.held.clear();
        self.warm();
        Ok(())
    }

    fn step(
        &mut self,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        let rows = plan.rows();
        input.check(rows, self.hidden, self.vocab)?;
        let effects = self.apply(plan)?;
        out.clear();
        out.resize(rows * self.hidden, 0.0);
        for piece in pieces(rows, &plan.cuts, PIECE_ROWS_MAX) {
            self.run(&effects, piece, input, out);
        }
        self.held = effects.held;
        Ok(())
    }

    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError> {
        assert!(self.config.ends, "logits were asked of a rank without the ends");
        let sizes = self.sizes.ok_or(StageError::EmptyShape { what: "rows of a round" })?;
        assert_eq!(rows.len() % self.hidden, 0, "whole rows");
        out.clear();
        out.resize(rows.len() / self.hidden * self.vocab, 0.0);
        let rows = rows.chunks(sizes.head_rows_max * self.hidden);
        let logits = out.chunks_mut(sizes.head_rows_max * self.vocab);
        rows.zip(logits).for_each(|(rows, logits)| self.program.head(rows, logits));
        Ok(())
    }

    fn skip(&mut self, id: StreamId) {
        self.slots.skip(id);
    }

    fn reset(&mut self) {
        self.slots.reset();
        self.held.clear();
    }

    fn held(&self) -> &[bool] {
        &self.held
    }

    fn table(&self) -> Vec<SlotState> {
        self.slots.table()
    }
}

/// Bytes that a range takes once it is prepared for `shapes`.
pub fn need_bytes(
    checkpoint: &Checkpoint,
    config: &StageConfig,
    shapes: &Shapes,
) -> Result<Need, StageError> {
    check_range(checkpoint.config().layers(), &config.range)?;
    model::need(checkpoint, &config.part(), sizes(shapes)?)
}

fn check_range(layers: u32, range: &Range<u32>) -> Result<(), StageError> {
    if range.start < range.end && range.end <= layers {
        return Ok(());
    }
    Err(StageError::OtherRange { layers, first: range.start, end: range.end })
}

fn sizes(shapes: &Shapes) -> Result<Sizes, StageError> {
    let fields = [
        ("rows of a stream", shapes.chunk_rows_max),
        ("rows of a round", shapes.round_rows_max),
        ("streams", shapes.streams_max),
        ("positions of a stream", shapes.context_max),
        ("pages", shapes.pages),
    ];
    if let Some(&(what, _)) = fields.iter().find(|(_, value)| *value == 0) {
        return Err(StageError::EmptyShape { what });
    }
    let rows = shapes.round_rows_max as usize;
    Ok(Sizes {
        rows_max: rows.min(PIECE_ROWS_MAX),
        head_rows_max: rows.min(HEAD_ROWS_MAX),
        pages: shapes.pages as usize,
    })
}

/// Splits `rows` into pieces of at most `most`, each ending at the last cut that it can reach.
fn pieces(rows: usize, cuts: &[u32], most: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let limit = (start + most).min(rows);
        let reach =
            cuts.iter().map(|&cut| cut as usize).filter(|cut| (start + 1..limit).contains(cut));
        let end = if limit == rows { rows } else { reach.max().unwrap_or(limit) };
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}
