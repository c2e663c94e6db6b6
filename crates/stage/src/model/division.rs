//! What each member of a group has of a layer: heads, widths and the way a block's rows meet again.
//!
//! Column shares (queries, keys, values, gates, MLP widths) are whole heads or runs of outputs; the
//! projection that ends a block is divided in one of two ways. As **nodes**, where the pieces of
//! its input are whole groups of K: each member sums its groups, and the nodes are added in the
//! tree's order. Else by its **outputs**: the input is gathered, each member computes some of the
//! outputs over the whole K, and those are gathered. Both are one machine's bytes; a division
//! depends on the model and the group alone.

use std::ops::Range;

use arith::attention::Heads;
use arith::gdn::{Gdn, HeadOrder};
use arith::linear::{GROUPS, Groups};
use backend::Together;

use super::choice::{Traffic, Way};
use super::shape::Shape;
use super::share::{Share, Split};
use super::{Part, Sizes};

/// Outputs are dealt out in runs of as many, where there are enough: what kernels take at once.
const OUTPUTS_UNIT: usize = 16;

/// Who has which values of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) width: usize,
    /// The runs of each member, in the order in which it has them; none where every member has the
    /// whole row.
    members: Vec<Vec<Range<usize>>>,
}

impl Pieces {
    fn whole(width: usize) -> Self {
        Self { width, members: Vec::new() }
    }

    fn of(width: usize, members: Vec<Vec<Range<usize>>>) -> Self {
        let all = members.iter().flatten().map(ExactSizeIterator::len);
        assert_eq!(all.sum::<usize>(), width, "pieces of {width} values");
        Self { width, members }
    }

    /// One run a member, as equal as can be.
    pub(super) fn even(width: usize, count: usize) -> Self {
        if count == 1 || width < count {
            return Self::whole(width);
        }
        let unit = if width >= count * OUTPUTS_UNIT { OUTPUTS_UNIT } else { 1 };
        let end = |i: usize| if i == count { width } else { width / unit * i / count * unit };
        Self::of(width, (0..count).map(|i| one(end(i)..end(i + 1))).collect())
    }

    /// Whether members have different values.
    pub(super) fn is_divided(&self) -> bool {
        !self.members.is_empty()
    }

    /// The runs of member `index`.
    pub(super) fn runs(&self, index: usize) -> Vec<Range<usize>> {
        self.members.get(index).cloned().unwrap_or_else(|| one(0..self.width))
    }

    /// Values of member `index`.
    pub(super) fn values(&self, index: usize) -> usize {
        self.runs(index).iter().map(ExactSizeIterator::len).sum()
    }

    /// The runs of each member of a divided row.
    pub(super) fn members(&self) -> &[Vec<Range<usize>>] {
        &self.members
    }

    /// How they become whole rows.
    pub(super) fn together(&self) -> Together<'_> {
        Together::Pieces { width: self.width, members: &self.members }
    }

    /// Whether each member's piece is its own share of the groups of K.
    fn are_groups(&self) -> bool {
        let count = self.members.len();
        let whole = |(i, runs): (usize, &Vec<Range<usize>>)| {
            let values = Groups::values(self.width, groups_of(i, count));
            !values.is_empty() && *runs == [values]
        };
        is_node_count(count) && self.members.iter().enumerate().all(whole)
    }
}

/// Whether a share of as many members is a node of the tree.
fn is_node_count(count: usize) -> bool {
    count > 1 && count.is_power_of_two() && count <= GROUPS
}

fn groups_of(index: usize, count: usize) -> Range<usize> {
    index * GROUPS / count..(index + 1) * GROUPS / count
}

/// The division of one such projection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Close {
    pub(super) way: Way,
    pub(super) input: Pieces,
    pub(super) output: Pieces,
}

impl Close {
    fn of(share: Share, input: Pieces, outputs: usize) -> Self {
        let way = match share.split {
            _ if share.count == 1 || outputs < share.count && !input.is_divided() => Way::Whole,
            Split::Shards if input.are_groups() => Way::Nodes,
            _ => Way::Outputs,
        };
        let output = match way {
            Way::Outputs => Pieces::even(outputs, share.count),
            _ => Pieces::whole(outputs),
        };
        Self { way, input, output }
    }

    /// The groups of K of member `index` of `count`.
    pub(super) fn groups(&self, index: usize) -> Range<usize> {
        groups_of(index, self.input.members.len())
    }

    /// How the nodes of outputs become outputs.
    pub(super) fn nodes(&self) -> Together<'_> {
        Together::Nodes { width: self.output.width, members: self.input.members.len() }
    }

    /// Values of the matrix that member `index` has, of how many.
    fn share(&self, index: usize) -> (usize, usize) {
        match self.way {
            Way::Whole => (1, 1),
            Way::Nodes => (self.input.values(index), self.input.width),
            Way::Outputs => (self.output.values(index), self.output.width),
        }
    }

    /// Exchanges a row, and the values that member `index` gives and takes in them.
    fn traffic(&self, index: usize, count: usize) -> Traffic {
        let gathered = |pieces: &Pieces| match pieces.is_divided() {
            true => {
                let own = pieces.values(index);
                Traffic { exchanges: 1, sent: (count - 1) * own, taken: pieces.width - own }
            }
            false => Traffic::default(),
        };
        let nodes = (count - 1) * self.output.width;
        match self.way {
            Way::Whole => Traffic::default(),
            Way::Nodes => Traffic { exchanges: 1, sent: nodes, taken: nodes },
            Way::Outputs => gathered(&self.input) + gathered(&self.output),
        }
    }
}

/// What a member has of every layer.
#[derive(Clone, Debug)]
pub(super) struct Division {
    pub(super) share: Share,
    /// The model's shape.
    pub(super) whole: Shape,
    /// The same of this member's layers: its heads and its width of the MLP.
    pub(super) own: Shape,
    query: Pieces,
    kv: Pieces,
    /// Value heads, and channels before the convolution.
    values: Pieces,
    channels: Pieces,
    middle: Pieces,
    pub(super) vocab: Pieces,
    /// What ends attention, a recurrent mixer and the MLP.
    pub(super) o: Close,
    pub(super) out: Close,
    pub(super) down: Close,
}

impl Division {
    pub(super) fn new(whole: Shape, share: Share) -> Self {
        let Share { index, count, split } = share;
        let mut own = whole.clone();
        let (query, kv) = divide_heads(whole.heads, count);
        own.heads.query = query.values(index);
        own.heads.kv = kv.as_ref().map_or(whole.heads.kv, |kv| kv[index].len());
        let dim = whole.heads.dim;
        let kv = kv.map_or_else(Vec::new, |kv| kv.iter().map(|kv| one(scaled(kv, dim))).collect());
        // Several members may have the same keys, so these are no pieces that are joined.
        let kv = Pieces { width: whole.kv_width(), members: kv };
        let query = times(&query, dim);
        let values = match whole.gdn {
            Some(gdn) => divide_values(gdn, count),
            None => (Pieces::whole(0), Vec::new()),
        };
        let mut channels = Pieces::whole(0);
        if let (Some(gdn), Some(own)) = (whole.gdn, &mut own.gdn) {
            (own.keys, own.values) = match values.1.get(index) {
                Some(keys) => (keys.len(), values.0.values(index)),
                None => (gdn.keys, gdn.values),
            };
            channels = divide_channels(gdn, &values);
        }
        let value_dim = whole.gdn.map_or(0, |gdn| gdn.value_dim);
        let middle = match split {
            Split::Shards if is_node_count(count) => by_groups(whole.intermediate, count),
            _ => Pieces::even(whole.intermediate, count),
        };
        own.intermediate = middle.values(index);
        let close = |input: Pieces| Close::of(share, input, whole.hidden);
        Self {
            o: close(query.clone()),
            out: close(times(&values.0, value_dim)),
            down: close(middle.clone()),
            vocab: Pieces::even(whole.vocab, count),
            values: values.0,
            share,
            own,
            query,
            kv,
            channels,
            middle,
            whole,
        }
    }

    /// Of a group of one.
    pub(super) fn alone(whole: Shape) -> Self {
        Self::new(whole, Share::default())
    }

    /// Rows of `attn_q` that are this member's, of `each` a value of a query.
    pub(super) fn query_rows(&self, each: usize) -> Vec<Range<usize>> {
        let runs = self.query.runs(self.share.index);
        runs.iter().map(|run| scaled(run, each)).collect()
    }

    /// Rows of `attn_k` and of `attn_v`.
    pub(super) fn kv_rows(&self) -> Vec<Range<usize>> {
        self.kv.runs(self.share.index)
    }

    /// Value heads, of `each` rows or values.
    pub(super) fn value_rows(&self, each: usize) -> Vec<Range<usize>> {
        let runs = self.values.runs(self.share.index);
        runs.iter().map(|run| scaled(run, each)).collect()
    }

    /// Channels before the convolution.
    pub(super) fn channel_rows(&self) -> Vec<Range<usize>> {
        self.channels.runs(self.share.index)
    }

    /// Rows of `ffn_gate` and of `ffn_up`.
    pub(super) fn middle_rows(&self) -> Vec<Range<usize>> {
        self.middle.runs(self.share.index)
    }

    /// Rows of the head.
    pub(super) fn vocab_rows(&self) -> Vec<Range<usize>> {
        self.vocab.runs(self.share.index)
    }

    /// How much of the tensor of this name is this member's: so many parts of so many.
    pub(super) fn share_of(&self, name: &str) -> (usize, usize) {
        let index = self.share.index;
        let of = |pieces: &Pieces| (pieces.values(index), pieces.width);
        let what = name.strip_prefix("blk.").and_then(|rest| rest.split('.').nth(1));
        match what {
            Some("attn_q") => of(&self.query),
            Some("attn_k" | "attn_v") => of(&self.kv),
            Some("attn_output") => self.o.share(index),
            Some("attn_qkv") => of(&self.channels),
            Some("attn_gate" | "ssm_beta" | "ssm_alpha") => of(&self.values),
            Some("ssm_out") => self.out.share(index),
            Some("ffn_gate" | "ffn_up") => of(&self.middle),
            Some("ffn_down") => self.down.share(index),
            // Beside the whole table, a tied head is a share of it.
            None if name == "token_embd.weight" && self.whole.tied && self.vocab.is_divided() => {
                let (own, all) = of(&self.vocab);
                (own + all, all)
            }
            None if name == "output.weight" => of(&self.vocab),
            _ => (1, 1),
        }
    }

    /// Bytes of the row buffers of a part, those on their way to other members counted.
    pub(super) fn buffers_bytes(&self, part: &Part, sizes: Sizes) -> u64 {
        let index = self.share.index;
        let logits = match (part.ends, self.vocab.is_divided()) {
            (false, _) => 0,
            (true, false) => self.vocab.width,
            // Its own, before and after the device, and all.
            (true, true) => 2 * self.vocab.values(index) + self.vocab.width,
        };
        let host = sizes.rows_max * self.row_values() + sizes.head_rows_max * logits;
        self.own.buffers_bytes(part, sizes) + 4 * host as u64
    }

    /// Bytes of the row buffers of the second half of a pair.
    pub(super) fn twin_bytes(&self, part: &Part, sizes: Sizes) -> u64 {
        if sizes.twin_rows == 0 {
            return 0;
        }
        // The head's rows are the first half's.
        let twin = Sizes { rows_max: sizes.twin_rows, head_rows_max: 0, ..sizes };
        self.own.buffers_bytes(part, twin) + 4 * (sizes.twin_rows * self.row_values()) as u64
    }

    /// Values of a row on its way to other members.
    fn row_values(&self) -> usize {
        let values = |close: &Close| match close.way {
            Way::Whole => 0,
            Way::Nodes => (self.share.count + 2) * close.output.width,
            Way::Outputs => {
                let host = 3 * close.input.width.max(close.output.width);
                host + close.input.width + close.output.values(self.share.index)
            }
        };
        [&self.o, &self.out, &self.down].map(values).iter().sum()
    }

    /// A layer's mixer of attention, its recurrent mixer, its MLP, and the head.
    pub(super) fn traffic(&self) -> [Traffic; 4] {
        let Share { index, count, .. } = self.share;
        let [o, out, down] = [&self.o, &self.out, &self.down].map(|c| c.traffic(index, count));
        let own = self.vocab.values(index);
        let head = match self.vocab.is_divided() {
            true => {
                let (sent, taken) = if index == 0 { (0, self.vocab.width - own) } else { (own, 0) };
                Traffic { exchanges: 1, sent, taken }
            }
            false => Traffic::default(),
        };
        [o, out, down, head]
    }
}

/// A single run.
fn one(run: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(run).collect()
}

fn scaled(run: &Range<usize>, by: usize) -> Range<usize> {
    run.start * by..run.end * by
}

fn times(pieces: &Pieces, by: usize) -> Pieces {
    let runs = |runs: &Vec<Range<usize>>| runs.iter().map(|run| scaled(run, by)).collect();
    Pieces { width: pieces.width * by, members: pieces.members.iter().map(runs).collect() }
}

/// Pieces that are whole groups of K, where each member has some.
fn by_groups(width: usize, count: usize) -> Pieces {
    let runs: Vec<Range<usize>> =
        (0..count).map(|i| Groups::values(width, groups_of(i, count))).collect();
    match runs.iter().any(Range::is_empty) {
        true => Pieces::even(width, count),
        false => Pieces::of(width, runs.into_iter().map(one).collect()),
    }
}

/// A part of a kind of heads that others share: which, and which of the `shared` that go with each.
struct Dealt {
    heads: Range<usize>,
    /// Of the ones that go with its only head.
    with: Range<usize>,
}

/// Deals `heads`, each with `shared` others, out to `count` members: whole ones, or where there are
/// more members than heads, parts of what goes with one. `None` where that is too little.
fn deal(heads: usize, shared: usize, count: usize) -> Option<Vec<Dealt>> {
    if count <= heads {
        let end = |i: usize| i * heads / count;
        return Some(
            (0..count).map(|i| Dealt { heads: end(i)..end(i + 1), with: 0..shared }).collect(),
        );
    }
    let head = |i: usize| i * heads / count;
    let dealt = (0..count).map(|i| {
        let with: Vec<usize> = (0..count).filter(|other| head(*other) == head(i)).collect();
        let place = i - with[0];
        let end = |place: usize| place * shared / with.len();
        let part = Dealt { heads: head(i)..head(i) + 1, with: end(place)..end(place + 1) };
        (!part.with.is_empty()).then_some(part)
    });
    dealt.collect()
}

/// Query heads and each member's kv heads; whole where there are too few.
fn divide_heads(heads: Heads, count: usize) -> (Pieces, Option<Vec<Range<usize>>>) {
    let shared = heads.query / heads.kv;
    let dealt = if count == 1 { None } else { deal(heads.kv, shared, count) };
    let Some(dealt) = dealt else { return (Pieces::whole(heads.query), None) };
    let query = dealt.iter().map(|part| match part.heads.len() {
        1 => {
            let first = part.heads.start * shared;
            one(first + part.with.start..first + part.with.end)
        }
        _ => one(scaled(&part.heads, shared)),
    });
    let query = Pieces::of(heads.query, query.collect());
    (query, Some(dealt.into_iter().map(|part| part.heads).collect()))
}

/// Value heads, in the order of the stored weights, and each member's key heads; no key heads where
/// every member has all.
fn divide_values(gdn: Gdn, count: usize) -> (Pieces, Vec<Range<usize>>) {
    let shared = gdn.values / gdn.keys;
    let dealt = if count == 1 { None } else { deal(gdn.keys, shared, count) };
    let Some(dealt) = dealt else { return (Pieces::whole(gdn.values), Vec::new()) };
    let values = dealt.iter().map(|part| {
        let run =
            |with: usize| with * gdn.keys + part.heads.start..with * gdn.keys + part.heads.end;
        match gdn.order {
            HeadOrder::Tiled => joined(part.with.clone().map(run)),
            HeadOrder::Grouped if part.heads.len() == 1 => {
                let first = part.heads.start * shared;
                one(first + part.with.start..first + part.with.end)
            }
            HeadOrder::Grouped => one(scaled(&part.heads, shared)),
        }
    });
    let values = Pieces::of(gdn.values, values.collect());
    (values, dealt.into_iter().map(|part| part.heads).collect())
}

/// Runs, those that touch as one.
fn joined(runs: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => all.push(run),
        }
    }
    all
}

/// The channels of members: queries, keys and values of their heads.
fn divide_channels(gdn: Gdn, (values, keys): &(Pieces, Vec<Range<usize>>)) -> Pieces {
    let width = gdn.key_width();
    let members = keys.iter().zip(values.members()).map(|(keys, values)| {
        let query = scaled(keys, gdn.key_dim);
        let key = width + query.start..width + query.end;
        let values = values.iter().map(|run| scaled(run, gdn.value_dim));
        let values = values.map(|run| 2 * width + run.start..2 * width + run.end);
        joined([query, key].into_iter().chain(values))
    });
    // Several members may have the same keys, so these are no pieces that are joined.
    Pieces { width: gdn.channels(), members: members.collect() }
}
