//! Bugs that a run can be given, to see that some seed finds each.

use std::fmt;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A rank's stage keeps rows that were rejected.
    LostRollback,
    /// A rank takes frames of a link of an older epoch.
    LateFrame,
    /// A rank's stage gives the pages of a stream that ended back twice.
    FreedTwice,
    /// A rank's stage is not told of cancels.
    CancelSkipsStage,
    /// A rank says that it kept a state that it had no room for.
    HalfKept,
    /// Rank 0 forgets that it was woken while it took frames.
    LostWakeup,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::LostRollback,
        Self::LateFrame,
        Self::FreedTwice,
        Self::CancelSkipsStage,
        Self::HalfKept,
        Self::LostWakeup,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::LostRollback => "lost-rollback",
            Self::LateFrame => "late-frame",
            Self::FreedTwice => "freed-twice",
            Self::CancelSkipsStage => "cancel-skips-stage",
            Self::HalfKept => "half-kept",
            Self::LostWakeup => "lost-wakeup",
        }
    }

    /// The plant of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plant| plant.name() == name)
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
