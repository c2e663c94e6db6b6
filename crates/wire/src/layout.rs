//! Which rank holds which layers.

use std::fmt;
use std::ops::Range;

use arith::base::{Rank, WORLD_MAX};

use crate::error::{Fault, WireError};
use crate::group::MEMBERS;
use crate::limit::LAYERS_MAX;

/// A half-open layer range a rank, none empty; printed and read as `0:10,10:20,20:30`. A range that
/// a group of machines shares says how and by how many: `0:32@shards2,32:64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    ranges: Vec<Range<u32>>,
    /// A rank's group, where it has one.
    groups: Vec<Option<Group>>,
}

/// How the members of a group share each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// By columns and rows of the matrices: f32 tree nodes cross the links.
    Shards,
    /// By output rows alone: nothing is added across a link.
    Rows,
}

impl Split {
    /// The name in layouts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shards => "shards",
            Self::Rows => "rows",
        }
    }
}

/// A rank of several members, its leader among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// How they share a layer.
    pub split: Split,
    /// How many they are, 2..8.
    pub members: u32,
}

impl Group {
    fn parse(text: &str) -> Option<Self> {
        let split = [Split::Shards, Split::Rows].into_iter();
        let (split, count) =
            split.filter_map(|split| Some((split, text.strip_prefix(split.name())?))).next()?;
        let members = count.parse().ok().filter(|members| MEMBERS.contains(members))?;
        Some(Self { split, members })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.split.name(), self.members)
    }
}

impl Layout {
    /// Takes the ranges in rank order.
    ///
    /// # Errors
    /// `BadRank` for a world outside 1..64, `BadLayout` for an empty range. Whether the ranges
    /// cover the model is [`Layout::check`]'s.
    pub fn new(ranges: Vec<Range<u32>>) -> Result<Self, WireError> {
        if ranges.is_empty() || ranges.len() > WORLD_MAX as usize {
            let expected = format!("1..{WORLD_MAX} ranges");
            return Err(WireError::BadRank(Fault::new("layout", expected, ranges.len())));
        }
        for (rank, range) in (0..).map(Rank).zip(&ranges) {
            if range.is_empty() {
                let found = format!("{}:{}", range.start, range.end);
                let fault = Fault::new("layout.range", "at least one layer", found);
                return Err(WireError::BadLayout(fault).at(rank));
            }
        }
        let groups = vec![None; ranges.len()];
        Ok(Self { ranges, groups })
    }

    /// Reads `first:end` pairs, separated by commas, in rank order; behind a pair `@shardsN` or
    /// `@rowsN`, N from 2 to 8, makes its rank a group.
    ///
    /// # Errors
    /// `BadLayout` for other text, and those of [`Layout::new`].
    pub fn parse(text: &str) -> Result<Self, WireError> {
        // One more than allowed is enough for `new` to refuse.
        let pairs = text.split(',').take(WORLD_MAX as usize + 1).zip((0..).map(Rank));
        let (mut ranges, mut groups) = (Vec::new(), Vec::new());
        for (pair, rank) in pairs {
            let bad = |field, expected| {
                WireError::BadLayout(Fault::new(field, expected, format!("{pair:?}"))).at(rank)
            };
            let (range, group) = match pair.trim().split_once('@') {
                Some((range, group)) => (range, Some(group)),
                None => (pair, None),
            };
            let range = range.split_once(':').and_then(|(first, end)| {
                Some(first.trim().parse().ok()?..end.trim().parse().ok()?)
            });
            ranges.push(range.ok_or_else(|| bad("layout.range", "first:end"))?);
            let group = group.map(|text| {
                let expected = "shardsN or rowsN, N from 2 to 8";
                Group::parse(text).ok_or_else(|| bad("layout.group", expected))
            });
            groups.push(group.transpose()?);
        }
        let Self { ranges, .. } = Self::new(ranges)?;
        Ok(Self { ranges, groups })
    }

    /// Equal ranges; where they can't be equal, later ranks hold one layer more, since rank 0
    /// also holds the ends.
    ///
    /// # Errors
    /// `BadRank` for a world outside 1..64, `BadLayout` for more ranks than layers.
    pub fn even(layers: u32, world: u32) -> Result<Self, WireError> {
        if world > layers {
            let expected = format!("at most {layers} ranks");
            return Err(WireError::BadLayout(Fault::new("layout.world", expected, world)));
        }
        let bound = |rank: u32| (u64::from(layers) * u64::from(rank) / u64::from(world)) as u32;
        let ranks = 0..world.min(WORLD_MAX + 1);
        Self::new(ranks.map(|rank| bound(rank)..bound(rank + 1)).collect())
    }

    /// Number of ranks.
    pub fn world(&self) -> u32 {
        self.ranges.len() as u32
    }

    /// The layers of `rank`, which must be below the world.
    pub fn range(&self, rank: Rank) -> Range<u32> {
        self.ranges[rank.0 as usize].clone()
    }

    /// The group of `rank`, which must be below the world; `None` for one machine.
    pub fn group(&self, rank: Rank) -> Option<Group> {
        self.groups[rank.0 as usize]
    }

    /// Machines of `rank`.
    pub fn members(&self, rank: Rank) -> u32 {
        self.group(rank).map_or(1, |group| group.members)
    }

    /// All ranges in rank order.
    pub fn ranges(&self) -> &[Range<u32>] {
        &self.ranges
    }

    /// Requires that the ranges cover layers 0 .. `layers` once each, in order.
    ///
    /// # Errors
    /// `LayoutGap`, `LayoutOverlap`, `LayoutOverrun`, naming the first rank whose range is wrong.
    pub fn check(&self, layers: u32) -> Result<(), WireError> {
        if layers > LAYERS_MAX {
            let expected = format!("at most {LAYERS_MAX}");
            return Err(WireError::TooLarge(Fault::new("layout.layers", expected, layers)));
        }
        let mut next = 0;
        for (rank, range) in (0..).map(Rank).zip(&self.ranges) {
            let first = || Fault::new("layout.first", next, range.start);
            if range.start > next {
                return Err(WireError::LayoutGap(first()).at(rank));
            }
            if range.start < next {
                return Err(WireError::LayoutOverlap(first()).at(rank));
            }
            if range.end > layers {
                let fault = Fault::new("layout.end", format!("at most {layers}"), range.end);
                return Err(WireError::LayoutOverrun(fault).at(rank));
            }
            next = range.end;
        }
        if next < layers {
            let fault = Fault::new("layout.end", layers, next);
            return Err(WireError::LayoutGap(fault).at(Rank(self.world() - 1)));
        }
        Ok(())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, range) in self.ranges.iter().enumerate() {
            let comma = if rank == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", range.start, range.end)?;
            if let Some(group) = self.groups[rank] {
                write!(f, "@{group}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn refused(text: &str, layers: u32) -> String {
        let layout = Layout::parse(text);
        layout.and_then(|layout| layout.check(layers)).unwrap_err().to_string()
    }

    #[test]
    fn a_layout_reads_as_it_prints() {
        let layout = Layout::parse("0:10, 10:20,20:30").unwrap();
        assert_eq!(layout.to_string(), "0:10,10:20,20:30");
        assert_eq!((layout.world(), layout.range(Rank(1))), (3, 10..20));
        assert_eq!(layout.check(30), Ok(()));
    }

    #[test]
    fn a_rank_may_be_a_group() {
        let text = "0:32@shards2,32:64,64:96@rows8";
        let layout = Layout::parse(text).unwrap();
        assert_eq!(layout.to_string(), text);
        let members = [0, 1, 2].map(|rank| layout.members(Rank(rank)));
        assert_eq!((layout.world(), members), (3, [2, 1, 8]));
        assert_eq!(layout.group(Rank(0)), Some(Group { split: Split::Shards, members: 2 }));
        for group in ["", "rows", "rows1", "rows9", "shards", "shards-2", "halves2", "rows2@rows2"]
        {
            let expected = "BadLayout: rank 1: layout.group: expected shardsN or rowsN";
            let found = refused(&format!("0:4,4:8@{group}"), 8);
            assert!(found.starts_with(expected), "{group}: {found}");
        }
        assert_ne!(layout, Layout::parse("0:32,32:64,64:96@rows8").unwrap());
    }

    #[test]
    fn an_error_names_the_rank_and_the_layer() {
        let gap = "LayoutGap: rank 1: layout.first: expected 10, found 12";
        assert_eq!(refused("0:10,12:20", 20), gap);
        let overlap = "LayoutOverlap: rank 1: layout.first: expected 10, found 9";
        assert_eq!(refused("0:10,9:20", 20), overlap);
        let overrun = "LayoutOverrun: rank 1: layout.end: expected at most 19, found 20";
        assert_eq!(refused("0:10,10:20", 19), overrun);
        let short = "LayoutGap: rank 1: layout.end: expected 21, found 20";
        assert_eq!(refused("0:10,10:20", 21), short);
        assert!(refused("1:10", 10).starts_with("LayoutGap: rank 0"));
    }

    #[test]
    fn text_that_is_no_layout_is_refused() {
        for text in ["", "0", "0-10", "0:a", "0:-1", "5:5", "6:5", "0:4294967296", "0:1,,1:2"] {
            assert!(refused(text, 10).starts_with("BadLayout: rank "), "{text}");
        }
        let many = (0..65).map(|rank| format!("{rank}:{}", rank + 1)).collect::<Vec<_>>();
        assert!(refused(&many.join(","), 65).starts_with("BadRank"));
        assert_eq!(Layout::parse(&many[..64].join(",")).unwrap().check(64), Ok(()));
    }

    #[test]
    fn an_even_layout_covers_every_layer_and_spares_rank_0() {
        for layers in 1..70 {
            for world in 1..=layers.min(WORLD_MAX) {
                let layout = Layout::even(layers, world).unwrap();
                assert_eq!((layout.world(), layout.check(layers)), (world, Ok(())));
                let sizes = layout.ranges().iter().map(|range| range.len());
                let (least, most) = (sizes.clone().min(), sizes.max());
                assert!(most <= least.map(|least| least + 1));
                assert_eq!(Some(layout.range(Rank(0)).len()), least);
            }
        }
        assert_eq!(Layout::even(30, 3).unwrap().to_string(), "0:10,10:20,20:30");
        assert_eq!(Layout::even(2, 3).unwrap_err().code(), "BadLayout");
        assert_eq!(Layout::even(100, 65).unwrap_err().code(), "BadRank");
        assert_eq!(Layout::even(100, 0).unwrap_err().code(), "BadRank");
    }
}
