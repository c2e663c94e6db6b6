//! Ways between the cards of a group's members: each other's memory, and NCCL.

use std::sync::Arc;

use arith::base::Rank;
use cuda::end::End;
use cuda::nccl::Nccl;
use cuda::peers::Peers;
use cuda::{Cuda, CudaError};
use shard::{Carrier, Direct, Group, Offer, Stopper, Through, Without};
use stage::{Exchange, Member};

use crate::device::Seat;

/// What a member that computes on `seat` exchanges through. Whatever was asked for, it answers the
/// others when they ask for a way between devices.
pub fn exchange(group: &Group, seat: &Seat, through: Through) -> Box<dyn Exchange> {
    let carrier = match (through, seat) {
        (Through::Nccl, Seat::Cuda(cuda)) => nccl(cuda).map_err(words),
        (Through::Auto | Through::Cards, Seat::Cuda(cuda)) => cards(cuda).map_err(words),
        (Through::Nccl | Through::Cards, _) => Err(Some(no_card(through, seat))),
        _ => Err(None),
    };
    Box::new(Direct::new(group.seat(), carrier))
}

/// Whether a rank that computes on `seat` has its device give rows to the next rank's, and take
/// them; where it was asked for and can't be, it says so.
pub fn moors(seat: &Seat, through: Through, rank: Rank) -> bool {
    let why = match (through, seat) {
        (Through::Cards, Seat::Cuda(_)) => return true,
        (Through::Nccl, Seat::Cuda(cuda)) => match cuda.mail_by_nccl(None) {
            Ok(version) => {
                tracing::info!("rank {rank}: {}: NCCL {version}", seat.device());
                return true;
            }
            Err(error) => error.to_string(),
        },
        (Through::Nccl | Through::Cards, _) => no_card(through, seat),
        _ => return false,
    };
    tracing::info!("rank {rank}: rows of the ring go over the link: {why}");
    false
}

fn no_card(through: Through, seat: &Seat) -> String {
    let way = if through == Through::Nccl { "nccl" } else { "cards" };
    format!("--exchange {way}: {} is no CUDA card", seat.device())
}

fn words(error: CudaError) -> Without {
    Some(error.to_string())
}

fn cards(cuda: &Arc<Cuda>) -> Result<Box<dyn Carrier>, CudaError> {
    Ok(Box::new(Cards(Peers::new(cuda)?)))
}

fn nccl(cuda: &Arc<Cuda>) -> Result<Box<dyn Carrier>, CudaError> {
    let nccl = Nccl::open(cuda, None)?;
    tracing::info!("{}: NCCL {}", Seat::Cuda(cuda.clone()).device(), nccl.version());
    Ok(Box::new(Cards(nccl)))
}

/// A card's end, as a group's members have it.
struct Cards<E>(E);

impl<E: End> Carrier for Cards<E> {
    fn offer(&mut self, members: usize) -> Result<Offer, String> {
        self.0.offer(members).map_err(|error| error.to_string())
    }

    fn connect(
        &mut self,
        offers: &[Offer],
        member: Member,
        over: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        self.0.connect(offers, member.index, over).map_err(|error| error.to_string())
    }

    fn stopper(&self) -> Stopper {
        self.0.stopper()
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble()
    }

    fn leave(&mut self) {
        self.0.leave();
    }
}
