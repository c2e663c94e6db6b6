//! NCCL between the cards of a group's members.

use std::sync::Arc;

use cuda::Cuda;
use cuda::nccl::Nccl;
use shard::{Carrier, Direct, Group, Id, Through};
use stage::{Exchange, Member};

use crate::device::Seat;

/// What a member that computes on `seat` exchanges through.
pub fn exchange(group: &Group, seat: &Seat, through: Through) -> Box<dyn Exchange> {
    if through != Through::Nccl {
        return Box::new(group.seat());
    }
    let carrier = match seat {
        Seat::Cuda(cuda) => open(cuda),
        _ => Err(format!("--exchange nccl: {} is no CUDA card", seat.device())),
    };
    Box::new(Direct::new(group.seat(), carrier))
}

fn open(cuda: &Arc<Cuda>) -> Result<Box<dyn Carrier>, String> {
    let nccl = Nccl::open(cuda, None).map_err(|error| error.to_string())?;
    tracing::info!("{}: NCCL {}", seat_of(cuda), nccl.version());
    Ok(Box::new(End(nccl)))
}

fn seat_of(cuda: &Arc<Cuda>) -> String {
    Seat::Cuda(cuda.clone()).device()
}

/// This member's end.
struct End(Nccl);

impl Carrier for End {
    fn draw(&mut self) -> Result<Id, String> {
        self.0.draw().map_err(|error| error.to_string())
    }

    fn connect(&mut self, id: &Id, member: Member, over: &dyn Fn() -> bool) -> Result<(), String> {
        let place = (member.index, member.count);
        self.0.connect(id, place, over).map_err(|error| error.to_string())
    }

    fn exchange(
        &mut self,
        own: &[f32],
        to: &[usize],
        takes: &mut [(usize, &mut [f32])],
        over: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        self.0.exchange(own, to, takes, over).map_err(|error| error.to_string())
    }

    fn abort(&mut self) {
        self.0.abort();
    }
}
