//! NCCL, the vendor's library between cards, loaded at run time. Here it moves words and adds
//! nothing: sums stay in the tree's order, which is the members' own.

use std::sync::Arc;

use crate::carried::{Carried, Unrecorded};
use crate::communicator::{self, Communicator};
use crate::device::Side;
use crate::end::{End, Offer, Stopper};
use crate::library::Nccl as Library;
use crate::meet::{Meeting, Way};
use crate::{Cuda, CudaError};

/// The library, and one member's end of a communicator on a card.
pub struct Nccl {
    cuda: Arc<Cuda>,
    library: Arc<Library>,
    side: Arc<Side>,
    communicator: Option<Arc<Communicator>>,
    unrecorded: Unrecorded,
}

impl Nccl {
    /// Loads the library from `path`, else from `BATON_NCCL` or where the system has it.
    ///
    /// # Errors
    /// `NoNccl` or `OldLibrary`; a card without room for a stream.
    pub fn open(cuda: &Arc<Cuda>, path: Option<&str>) -> Result<Self, CudaError> {
        let library = Arc::new(Library::open(path)?);
        let side = Arc::new(Side::new(&cuda.device)?);
        let (communicator, unrecorded) = (None, Unrecorded::default());
        Ok(Self { cuda: cuda.clone(), library, side, communicator, unrecorded })
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
    /// The library's words; one by which exchanges can't be recorded, as that turned out before:
    /// members that record and others do not meet.
    fn offer(&mut self, _: usize) -> Result<Offer, CudaError> {
        self.leave();
        if let Some(why) = self.unrecorded.get() {
            let words = format!("exchanges can't be recorded here: {why}");
            return Err(CudaError::Nccl { call: "cuStreamBeginCapture", words });
        }
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
            let ends = (made, side.clone());
            let carried = Carried::new(&self.cuda.device, ends, who, self.unrecorded.clone())?;
            self.cuda.wait();
            Meeting::new(&self.cuda, side, Way::Nccl(carried), index)
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
            self.cuda.end_meeting();
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
