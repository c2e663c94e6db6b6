//! A member's end of a way between the cards of a group.

use crate::CudaError;

/// Bytes of an offer.
pub const OFFER_BYTES: usize = 128;
/// What the others find a member's end by.
pub type Offer = [u8; OFFER_BYTES];
/// Ends every wait of a card for others, in the epoch that it was made in.
pub type Stopper = Box<dyn Fn() + Send + Sync>;

/// One end, in one epoch after another.
pub trait End: Send {
    /// What others find this end by, among `members`; any epoch before has ended.
    ///
    /// # Errors
    /// A card without room for it, or the words of the library that carries.
    fn offer(&mut self, members: usize) -> Result<Offer, CudaError>;

    /// Finds all other ends, of which this is `index` of as many as there are offers. Whatever
    /// waits for them gives up soon after `over` says so.
    ///
    /// # Errors
    /// An end that is not found, or that it was given up on; a card without room for what comes.
    fn connect(
        &mut self,
        offers: &[Offer],
        index: usize,
        over: &dyn Fn() -> bool,
    ) -> Result<(), CudaError>;

    /// What ends this epoch's waits for others, from any thread.
    fn stopper(&self) -> Stopper;

    /// What went wrong since the members met.
    fn trouble(&self) -> Option<String>;

    /// Ends what waits, and forgets the others.
    fn leave(&mut self);
}
