//! Who reads a link: the compute side while it waits, the I/O side while it computes.

use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank, StreamId};
use ring::link::Inbound;
use wire::cancel::Cancel;
use wire::frame::Frame;

use crate::support::*;

/// Soon, for something that nothing but a wake-up brings about.
const SOON: Duration = Duration::from_secs(2);

fn cancel(stream: u32) -> Frame {
    Frame::cancel(&Cancel { origin: Rank(0), stream: StreamId(stream), epoch: Epoch(1) })
}

/// Rank 1 waits, computes, waits; a frame passes it at once all the same.
#[test]
fn a_cancel_passes_a_rank_that_waits_and_one_that_computes() {
    let ring = ring_of(3, |config| config.times.beat = LONG);
    let mut links = join_all(&ring, 1);
    let (last, between) = (links.remove(2), links.remove(1));
    for round in 0..100 {
        (0..round % 3).for_each(|_| nothing(&between, Duration::from_millis(1)));
        // And now it computes.
        let since = Instant::now();
        links[0].outbound.send(cancel(round)).unwrap();
        assert_eq!(frame(&last), cancel(round));
        assert!(since.elapsed() < SOON, "round {round}: {:?}", since.elapsed());
        assert_eq!(frame(&between), cancel(round), "round {round}");
    }
}

#[test]
fn a_wait_at_a_socket_ends_by_a_frame_a_poke_and_the_links_end() {
    let ring = ring_of(2, |config| config.times.beat = LONG);
    let mut links = join_all(&ring, 1);
    let (first, second) = (links.remove(0), links.remove(0));
    let waker = second.waker.clone();
    let heard = std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let mut heard = Vec::new();
            while !matches!(heard.last(), Some(Inbound::Broken(_))) {
                let since = Instant::now();
                heard.push(next(&second));
                assert!(since.elapsed() < SOON, "{heard:?}");
            }
            heard
        });
        for _ in 0..3 {
            let asleep = Duration::from_millis(20);
            std::thread::sleep(asleep);
            first.outbound.send(control("a frame")).unwrap();
            std::thread::sleep(asleep);
            waker.wake();
        }
        first.outbound.close();
        waits.join().unwrap()
    });
    let frame = || Inbound::Frame(control("a frame"));
    let expected = [frame(), Inbound::Poke, frame(), Inbound::Poke, frame(), Inbound::Poke];
    assert_eq!(heard[..6], expected);
}
