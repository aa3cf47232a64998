//! The bounds that a node keeps on its connections: sizes, counts and times.

use std::time::Duration;

use super::hello::Lane;

/// The largest body of one frame on each lane, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneBytes {
    /// Votes and heartbeats.
    pub vote: usize,
    /// Appends: 1 MiB of entries and room for what is around them.
    pub append: usize,
    /// Pieces of a checkpoint.
    pub snapshot: usize,
    /// Forwarded questions and their answers.
    pub forward: usize,
}

impl LaneBytes {
    /// Returns the bound of one lane.
    pub fn of(&self, lane: Lane) -> usize {
        match lane {
            Lane::Vote => self.vote,
            Lane::Append => self.append,
            Lane::Snapshot => self.snapshot,
            Lane::Forward => self.forward,
        }
    }
}

/// The bounds that a node keeps on its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLimits {
    /// The largest body of a frame, by lane. Below 4 GiB.
    pub frame_bytes_max: LaneBytes,
    /// How long a dial may take, from the first packet to the peer's welcome.
    pub connect_timeout: Duration,
    /// How long the listener waits for the hello of a connection that it accepted.
    pub handshake_timeout: Duration,
    /// How long written bytes may stay unacknowledged (TCP_USER_TIMEOUT), and how long a link whose
    /// call timed out may hear nothing before it redials.
    pub tcp_user_timeout: Duration,
    /// How long a connection is idle before TCP asks whether the peer is still there.
    pub keepalive_idle: Duration,
    /// How long a frame may take from its first byte to its last.
    pub frame_timeout: Duration,
    /// Calls of one connection that are sent and not answered. The caller holds the rest back; the
    /// answering side stops reading.
    pub in_flight_max: usize,
    /// Calls that wait to be sent on one link.
    pub queue_max: usize,
    /// Bytes of bodies that wait to be sent on one link.
    pub queue_bytes_max: usize,
    /// From the beginning of a first failed dial to the next one; it doubles with each further one.
    pub redial_pause_min: Duration,
    /// The longest pause between dials.
    pub redial_pause_max: Duration,
    /// Connections accepted by one listener and open at one time.
    pub accepted_max: usize,
    /// Accepted connections that have not said hello yet; a further one evicts the oldest.
    pub handshakes_max: usize,
}

impl Default for PeerLimits {
    fn default() -> PeerLimits {
        PeerLimits {
            frame_bytes_max: LaneBytes {
                vote: 64 << 10,
                append: (1 << 20) + (64 << 10),
                snapshot: (1 << 20) + (64 << 10),
                forward: 4 << 20,
            },
            connect_timeout: Duration::from_millis(500),
            handshake_timeout: Duration::from_secs(2),
            tcp_user_timeout: Duration::from_secs(2),
            keepalive_idle: Duration::from_secs(5),
            frame_timeout: Duration::from_secs(10),
            in_flight_max: 1024,
            queue_max: 8192,
            queue_bytes_max: 16 << 20,
            redial_pause_min: Duration::from_millis(10),
            redial_pause_max: Duration::from_millis(250),
            accepted_max: 1024,
            handshakes_max: 64,
        }
    }
}
