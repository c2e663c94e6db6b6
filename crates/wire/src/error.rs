//! What a message can have wrong, by name.

use std::fmt;

use arith::base::Rank;

/// The particulars of an error: who, which field, what was expected, what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank whose value it is, where the message or the link tells.
    pub rank: Option<Rank>,
    /// The field, dotted: `plan.mode`.
    pub field: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub found: String,
}

impl Fault {
    /// A fault of nobody in particular; [`WireError::at`] names the rank.
    pub fn new(
        field: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Box<Self> {
        Box::new(Self {
            rank: None,
            field: field.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {rank}: ")?;
        }
        write!(f, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Everything that a message, a layout or a ring's descriptions can have wrong.
        ///
        /// `Display` is `Code: rank R: field: expected X, found Y`.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        pub enum WireError {
            $($(#[$doc])* #[error("{code}: {0}", code = stringify!($name))] $name(Box<Fault>),)*
        }

        impl WireError {
            /// The error's name, as golden files, logs and documents spell it.
            pub fn code(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }

            /// The particulars.
            pub fn fault(&self) -> &Fault {
                match self { $(Self::$name(fault) => fault,)* }
            }

            /// The same error, with the rank named if it was not.
            #[must_use]
            pub fn at(mut self, rank: Rank) -> Self {
                let fault = match &mut self { $(Self::$name(fault) => fault,)* };
                fault.rank.get_or_insert(rank);
                self
            }

            /// The same error of nobody in particular, where members of a group meet, not ranks.
            #[must_use]
            pub fn unranked(mut self) -> Self {
                let fault = match &mut self { $(Self::$name(fault) => fault,)* };
                fault.rank = None;
                self
            }
        }
    };
}

errors! {
    /// The bytes are not this protocol's.
    BadMagic,
    /// Another version of the protocol or of the engine.
    OtherVersion,
    /// The other end uses another cipher.
    OtherCipher,
    /// A byte that must be zero is not.
    BadReserved,
    /// A frame kind that does not exist.
    OtherKind,
    /// A message of another kind than this place allows.
    OtherMessage,
    /// A flag that does not exist, or not here.
    BadFlags,
    /// A count or length past its named limit.
    TooLarge,
    /// The payload ends before the fields that it announces.
    Truncated,
    /// The payload goes on after its last field.
    Trailing,
    /// A frame that may not come now: another round's, or between the parts of a rows frame.
    OutOfTurn,
    /// Text that is not UTF-8.
    BadText,
    /// A value outside the field's set or range.
    BadValue,
    /// A rank outside the world, or a world outside 1..64.
    BadRank,
    /// A row count that contradicts the operation, the total or the payload.
    OtherRows,
    /// Stream ids or names that do not ascend strictly.
    BadOrder,
    /// A stream operation that does not exist.
    BadOp,
    /// A `want` that does not exist.
    BadWant,
    /// An open whose first, accepted or generation is not 0.
    BadOpen,
    /// A resume position that is 0, is not the first row's, or belongs to another operation.
    BadResume,
    /// A mode that does not exist.
    BadMode,
    /// Cuts that do not ascend strictly inside the round.
    BadCuts,
    /// A parent that does not come before its row.
    BadParent,
    /// A keep whose operation or status does not exist.
    BadKeep,
    /// A resume without a restore of that stream and position in the same plan.
    NoSuchKeep,
    /// The other end serves another model, layout or setting.
    OtherFingerprint,
    /// The other end believes in another number of ranks.
    OtherWorld,
    /// The other end is not this rank's neighbour on that side.
    NotNeighbour,
    /// The other end belongs to an old life of the ring.
    OtherEpoch,
    /// One end encrypts, the other does not.
    OtherEncryption,
    /// A layout that can't be read, or an empty range.
    BadLayout,
    /// Layers that no rank holds.
    LayoutGap,
    /// Layers that two ranks hold.
    LayoutOverlap,
    /// A range past the model's last layer.
    LayoutOverrun,
    /// A rank holds another range than the layout gives it.
    OtherRange,
    /// A rank computes with another arithmetic.
    OtherArith,
    /// A rank's rows have another width, number of planes or dtype.
    OtherBoundary,
    /// A rank keeps KV in another dtype.
    OtherKv,
    /// A rank's tensors differ from rank 0's manifest.
    OtherTensor,
    /// A rank has fewer KV pages than one stream of the asked context needs.
    TooFewPages,
    /// A rank has fewer recurrent states than the asked number of streams.
    TooFewStates,
    /// A rank that has not described itself.
    NotDescribed,
}
