//! What a node's connections count, for metrics and for tests.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The counters as they count.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)+
        }

        /// What a node's connections have counted since its [`Network`](super::Network) was made.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct PeerCounters {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// Returns what was counted so far.
            pub(super) fn read(&self) -> PeerCounters {
                PeerCounters { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Connections dialled and welcomed.
    dialled,
    /// Dials that failed: nobody there, too slow, or not a peer.
    dial_failures,
    /// Dials that the peer refused, or whose peer was another than the one meant.
    dial_refusals,
    /// Connections accepted and welcomed.
    accepted,
    /// Connections whose hello was refused, by this room or by the service.
    refused,
    /// Connections dropped at the door because too many were open.
    crowded_out,
    /// Connections closed because of bytes that are not a frame: magic, checksum, length, role.
    bad_frames,
    /// Connections whose hello did not come in time.
    silent,
    /// Calls whose deadline came.
    deadlines,
    /// Answers that came after their call was forgotten.
    late_answers,
    /// Connections closed because a call timed out and nothing came back.
    given_up,
    /// Frames written, of calls and of answers.
    frames_out,
    /// Frames read, of calls and of answers.
    frames_in,
    /// Writes handed to the socket.
    writes,
    /// Bytes written.
    bytes_out,
    /// Bytes read.
    bytes_in,
}

/// Adds `count` to one counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
