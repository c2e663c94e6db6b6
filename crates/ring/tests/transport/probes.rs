//! Questions at a rank's door that must change nothing behind it.

use std::net::TcpStream;

use arith::base::{Rank, Round};
use ring::tcp::probe::probe;
use wire::frame::Frame;

use crate::support::{LONG, config, fields, join_all, key, ring_of};

#[test]
fn a_probe_is_answered_and_leaves_a_serving_ring_as_it_is() {
    let ring = ring_of(3, |_| {});
    let links = join_all(&ring, 7);
    for asked in 0..3u32 {
        let address = ring[asked as usize].addresses()[0];
        let connect = || TcpStream::connect(address).unwrap();
        let rank = (asked + 2) % 3;
        assert_eq!(probe(config(rank, 3), connect()), Ok(()), "rank {asked}");
        let refused = |change: fn(&mut ring::tcp::TcpConfig)| {
            let mut other = config(rank, 3);
            change(&mut other);
            probe(other, connect()).unwrap_err().code()
        };
        assert_eq!(refused(|c| c.key = Some(key(9))), "BadSecret");
        assert_eq!(refused(|c| c.fingerprint = fields("big")), "OtherFingerprint");
        assert_eq!(refused(|c| c.world = 4), "OtherWorld");
        assert_eq!(refused(|c| c.rank = Rank((c.rank.0 + 1) % 3)), "NotNeighbour");
    }
    for (rank, link) in links.iter().enumerate() {
        assert_eq!(link.broken(), None, "rank {rank}");
        link.outbound.send(Frame::plan(Round(1), vec![1; 24])).unwrap();
    }
    for link in &links {
        assert!(link.inbound.recv_timeout(LONG).is_ok());
    }
}
