//! What a rank measures of itself for its tallies.

use std::time::Duration;

use tokio::net::TcpStream;

/// Least time between two tallies of a rank.
pub(crate) const TALLY_EVERY: Duration = Duration::from_secs(1);

/// Bytes that this process has in memory; 0 where that is not to be had.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    // SAFETY: asks for a number and touches no memory.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

/// The shortest way to the other end and back of the last minutes, in microseconds, as the kernel
/// knows it; 0 where that is not to be had.
#[cfg(target_os = "linux")]
pub(crate) fn link_us(stream: &TcpStream) -> u32 {
    use std::os::fd::AsRawFd;
    /// `tcpi_min_rtt` of the kernel's `struct tcp_info`, which only ever grows at its end.
    const MIN_RTT_AT: usize = 148;
    let mut info = [0_u8; MIN_RTT_AT + 4];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes `length` bytes at most, which is what `info` has.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if done != 0 || (length as usize) < info.len() {
        return 0;
    }
    let rtt = info[MIN_RTT_AT..].try_into().map_or(0, u32::from_ne_bytes);
    // All ones before the first sample.
    if rtt == u32::MAX { 0 } else { rtt }
}

/// The shortest way to the other end and back: not to be had here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn link_us(_: &TcpStream) -> u32 {
    0
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_link_that_was_used_and_a_process_that_runs_are_measured() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut inbound, _) = listener.accept().await.unwrap();
        out.write_all(&[1; 64]).await.unwrap();
        inbound.read_exact(&mut [0; 64]).await.unwrap();
        let us = link_us(&out);
        assert!((1..1_000_000).contains(&us), "{us} us on loopback");
        assert!(resident_bytes() > 1 << 20);
    }
}
