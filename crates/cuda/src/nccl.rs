//! NCCL, the vendor's library between cards, loaded at run time. Here it moves words and adds
//! nothing: sums stay in the tree's order, which is the members' own.

use std::sync::Arc;

use crate::communicator::{self, Communicator};
use crate::device::{Buffer, Side};
use crate::end::{End, Offer, Stopper};
use crate::library::Nccl as Library;
use crate::meet::{Meeting, PLACES, Way, many_values};
use crate::{Cuda, CudaError};

/// The library, and one member's end of a communicator on a card.
pub struct Nccl {
    cuda: Arc<Cuda>,
    library: Arc<Library>,
    side: Arc<Side>,
    communicator: Option<Arc<Communicator>>,
}

impl Nccl {
    /// Loads the library from `path`, else from `BATON_NCCL` or where the system has it.
    ///
    /// # Errors
    /// `NoNccl` or `OldLibrary`; a card without room for a stream.
    pub fn open(cuda: &Arc<Cuda>, path: Option<&str>) -> Result<Self, CudaError> {
        let library = Arc::new(Library::open(path)?);
        let side = Arc::new(Side::new(&cuda.device)?);
        Ok(Self { cuda: cuda.clone(), library, side, communicator: None })
    }

    /// Its version: `2.29.3`.
    pub fn version(&self) -> String {
        communicator::version(&self.library)
    }
}

impl End for Nccl {
    /// The first member's counts.
    ///
    /// # Errors
    /// The library's words.
    fn offer(&mut self, _: usize) -> Result<Offer, CudaError> {
        self.leave();
        communicator::draw(&self.library)
    }

    fn connect(
        &mut self,
        offers: &[Offer],
        index: usize,
        over: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        self.leave();
        let (library, side, who) = (&self.library, &self.side, (index, offers.len()));
        let (made, begun) = Communicator::begin(library, side, &offers[0], who);
        self.communicator = Some(made.clone());
        let met = begun.and_then(|()| made.settle("ncclCommInitRankConfig", over));
        let meeting = met.and_then(|()| {
            let bytes = (PLACES * 4 * many_values(offers.len())) as u128;
            let place = |member| {
                let bytes = if member == index { 0 } else { bytes };
                Buffer::new(&self.cuda.device, "what other members give", bytes).map_err(memory)
            };
            let places = (0..offers.len()).map(place).collect::<Result<_, _>>()?;
            self.cuda.wait();
            Meeting::new(&self.cuda, &self.side, Way::Nccl(made, places), index)
        });
        match meeting {
            Ok(meeting) => self.cuda.set_meeting(Some(meeting)),
            Err(error) => {
                self.leave();
                return Err(error);
            }
        }
        Ok(())
    }

    fn stopper(&self) -> Stopper {
        let communicator = self.communicator.clone();
        Box::new(move || communicator.iter().for_each(|communicator| communicator.abort()))
    }

    fn trouble(&self) -> Option<String> {
        self.cuda.meeting_trouble()
    }

    /// Aborts the communicator, if there is one: what it runs on the card ends.
    fn leave(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            communicator.abort();
            self.cuda.wait();
            self.cuda.set_meeting(None);
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.leave();
    }
}

fn memory(error: backend::BackendError) -> CudaError {
    CudaError::Memory { words: error.to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_library_that_is_not_there_or_is_another_is_named() {
        let error = Library::open(Some("/nowhere/libnccl.so.2")).err().unwrap().to_string();
        assert!(error.starts_with("no NCCL here (/nowhere/libnccl.so.2: "), "{error}");
        assert!(error.contains("BATON_NCCL") && !error.contains('\n'), "{error}");
        let error = Library::open(Some("libc.so.6")).err().unwrap().to_string();
        assert!(error.starts_with("the CUDA NCCL here lacks nccl"), "{error}");
    }
}
