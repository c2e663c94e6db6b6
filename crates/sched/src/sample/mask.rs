//! What a reply may say next, as the sampler asks for it.

use std::fmt::Debug;

/// A constraint on replies, shared by all that ask for it.
pub trait Grammar: Debug + Send + Sync {
    /// The state at a reply's start.
    fn start(&self) -> Box<dyn Mask>;
}

/// What a constraint does to the next token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The logits hold -infinity wherever the reply may not go on; some are finite.
    Cut,
    /// The reply is complete; nothing may follow.
    Over,
    /// The constraint can't be followed, and why.
    Failed(String),
}

/// One reply's state within a [`Grammar`]. It may work beside the round: what [`Mask::cut`] needs
/// is known from the token before on.
pub trait Mask: Debug + Send {
    /// Cuts the logits of the next token.
    fn cut(&mut self, logits: &mut [f32]) -> Verdict;
    /// The token that was drawn; a stop token is not told.
    fn push(&mut self, id: u32);
    /// Whether the reply may ride in the next round. A mask whose [`Mask::cut`] has made others
    /// wait says no until it would not; whoever made it has the scheduler asked again then.
    fn may_ride(&self) -> bool {
        true
    }
}
