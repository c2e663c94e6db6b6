//! What the members of a group give each other goes from card to card, and no call waits for it:
//! few values by a kernel that writes into the others' memory and looks for theirs in its own, so
//! that it can be one of a graph's; many by copies on a side stream, under what the card computes
//! meanwhile, or by NCCL there ([`crate::carried`]).

use std::sync::Arc;

use backend::Together;

use crate::carried::Carried;
use crate::device::{Device, Event, Params, Side};
use crate::peers::Shelves;
use crate::rows::Rows;
use crate::{Cuda, CudaError};

/// Members of a group.
pub(crate) const MEMBERS_MAX: usize = 8;
/// Runs of a row that members have pieces of.
const RUNS_MAX: usize = 48;
/// Most values of a member that go as lines.
pub(crate) const FEW_VALUES: usize = 64 << 10;
/// Bytes of such lines, two values each.
pub(crate) const LINES_BYTES: usize = 8 * FEW_VALUES;
/// Most values of a member that go at once to all others together, and to each of many.
const MANY_VALUES: usize = 18 << 20;
const MANY_VALUES_LEAST: usize = 4 << 20;
/// Places for many values of a member: a lane's are joined after the next ones of the other lane
/// have come, and a member may be as much ahead.
pub(crate) const PLACES: usize = 4;
/// Rows on their way at once.
const LANES: usize = 2;
const THREADS: usize = 256;
/// Blocks of few values, which all run at once.
const BLOCKS_MAX: usize = 128;

/// `Run` of kernels/meet.cu.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
struct Run {
    from: i32,
    first: i32,
    to: i32,
    len: i32,
}

/// `Meet` of kernels/meet.cu.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Meet {
    own: u64,
    out: u64,
    came: [u64; MEMBERS_MAX],
    gone: [u64; MEMBERS_MAX],
    count: u64,
    stop: u64,
    lines: u64,
    index: i32,
    members: i32,
    rows: i32,
    width: i32,
    widths: [i32; MEMBERS_MAX],
    runs: i32,
    run: [Run; RUNS_MAX],
}

// SAFETY: as kernels/meet.cu declares it.
unsafe impl Params for Meet {}

/// Whether as many rows can go at once. Nobody would wait for a member that gives nothing: others
/// could be two meetings ahead of it and write where it still reads.
pub(crate) fn fits(rows: usize, together: Together<'_>) -> bool {
    let runs = match together {
        Together::Nodes { members, .. } if !members.is_power_of_two() => return false,
        Together::Nodes { .. } => 0,
        Together::Pieces { members, .. } => members.iter().map(Vec::len).sum(),
    };
    let members = together.members();
    if runs > RUNS_MAX || members > MEMBERS_MAX {
        return false;
    }
    let mut values = (0..members).map(|member| rows * together.values(member));
    values.all(|values| (1..=many_values(members)).contains(&values))
}

/// Most values of one of so many members that go at once: of two, 2,048 rows of a large model, and
/// where there are more not so many, since each of them has places for every other one's.
pub(crate) fn many_values(members: usize) -> usize {
    (MANY_VALUES / members.saturating_sub(1).max(1)).max(MANY_VALUES_LEAST)
}

/// By what many values go.
pub(crate) enum Way {
    Shelves(Arc<Shelves>),
    Nccl(Carried),
}

/// A member's end of an epoch's meetings.
pub(crate) struct Meeting {
    device: Arc<Device>,
    index: usize,
    side: Arc<Side>,
    way: Way,
    lanes: [Lane; LANES],
    /// Of many values.
    number: u32,
    trouble: Option<String>,
}

/// Rows on their way.
struct Lane {
    own: u64,
    number: u32,
    gone: Event,
    came: Event,
}

impl Meeting {
    pub(crate) fn new(
        cuda: &Cuda,
        side: &Arc<Side>,
        way: Way,
        index: usize,
    ) -> Result<Self, CudaError> {
        let device = &cuda.device;
        let lane = || {
            Ok::<_, CudaError>(Lane {
                own: 0,
                number: 0,
                gone: Event::new(device)?,
                came: Event::new(device)?,
            })
        };
        let lanes = [lane()?, lane()?];
        let (device, side) = (device.clone(), side.clone());
        Ok(Self { device, index, side, way, lanes, number: 0, trouble: None })
    }

    /// Ends what others are waited for, where that takes more than being told to.
    pub(crate) fn end(&mut self) {
        if let Way::Nccl(carried) = &mut self.way {
            carried.end();
        }
    }

    /// What went wrong since the members met.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether rows go as lines of a kernel's: on all members alike.
    fn is_few(&self, rows: usize, together: Together<'_>) -> bool {
        let most = (0..together.members()).map(|member| together.values(member)).max();
        matches!(self.way, Way::Shelves(_)) && rows * most.unwrap_or(0) <= FEW_VALUES
    }

    /// Gives the first `rows` rows of `own`, which stay as they are until they are taken.
    pub(crate) fn give(&mut self, lane: usize, own: &Rows, rows: usize, together: Together<'_>) {
        own.holds(rows);
        assert_eq!(own.width, together.values(self.index), "{own:?} of {together:?}");
        self.lanes[lane].own = own.at();
        if self.is_few(rows, together) {
            return;
        }
        self.number = self.number.wrapping_add(1);
        let Self { side, way, lanes, number, .. } = self;
        let lane = &mut lanes[lane];
        lane.number = *number;
        side.follow(&lane.gone);
        let done = match way {
            Way::Shelves(shelves) => shelves.carry(side, lane.own, 4 * rows * own.width, *number),
            Way::Nccl(carried) => {
                let values = (0..together.members()).map(|member| rows * together.values(member));
                carried.give(lane.own, *number, &values.collect::<Vec<_>>())
            }
        };
        side.pass(&lane.came);
        if let Err(error) = done {
            self.trouble.get_or_insert(error.to_string());
        }
    }

    /// Puts together what all members gave.
    pub(crate) fn take(&mut self, lane: usize, to: &mut Rows, rows: usize, together: Together<'_>) {
        to.holds(rows);
        assert_eq!(to.width, together.width(), "{to:?} of {together:?}");
        let few = self.is_few(rows, together);
        let Self { device, index, side, way, lanes, .. } = self;
        let (members, lane) = (together.members(), &lanes[lane]);
        let mut meet = Meet {
            own: lane.own,
            out: to.at(),
            came: [0; MEMBERS_MAX],
            gone: [0; MEMBERS_MAX],
            count: 0,
            stop: 0,
            lines: (LINES_BYTES / size_of::<[f32; 4]>()) as u64,
            index: *index as i32,
            members: members as i32,
            rows: rows as i32,
            width: to.width as i32,
            widths: [0; MEMBERS_MAX],
            runs: 0,
            run: [Run::default(); RUNS_MAX],
        };
        for member in 0..members {
            meet.widths[member] = together.values(member) as i32;
        }
        runs_of(together, &mut meet);
        for member in (0..members).filter(|member| member != index) {
            meet.came[member] = match way {
                Way::Shelves(shelves) if few => shelves.lines(member),
                Way::Shelves(shelves) => shelves.place(member, lane.number),
                Way::Nccl(carried) => carried.place(member, lane.number),
            };
        }
        let values = rows * together.values(*index).max(if meet.runs > 0 { to.width } else { 0 });
        let blocks = values.div_ceil(2 * THREADS).max(1);
        if !few {
            side.lead(&lane.came);
            let most = 8 * device.multiprocessors() as usize;
            let grid = [blocks.min(most) as u32, 1, 1];
            return device.launch("meet_many", grid, THREADS as u32, &meet);
        }
        if let Way::Shelves(shelves) = way {
            shelves.few(&mut meet.gone, (&mut meet.count, &mut meet.stop));
        }
        let grid = [blocks.min(BLOCKS_MAX) as u32, 1, 1];
        device.launch("meet_few", grid, THREADS as u32, &meet);
    }
}

/// The runs of members' pieces, one after another.
fn runs_of(together: Together<'_>, meet: &mut Meet) {
    let Together::Pieces { members, .. } = together else { return };
    for (from, runs) in members.iter().enumerate() {
        let mut first = 0;
        for run in runs {
            meet.run[meet.runs as usize] =
                Run { from: from as i32, first, to: run.start as i32, len: run.len() as i32 };
            first += run.len() as i32;
            meet.runs += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_go_where_every_member_has_some_and_not_too_many() {
        let may = |cut, width| {
            let members = &[0..cut, cut..width].map(|run| std::iter::once(run).collect());
            fits(1, Together::Pieces { width, members })
        };
        assert!(may(1, 2) && may(MANY_VALUES, MANY_VALUES + 1));
        assert!(!may(0, 2) && !may(2, 2) && !may(MANY_VALUES + 1, MANY_VALUES + 2));
    }
}
