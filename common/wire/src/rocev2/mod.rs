//! RoCEv2: the InfiniBand transport headers as they travel in UDP datagrams to
//! port 4791, their invariant CRC, and the connection manager's datagrams.
//!
//! Calls nothing but the CRC library. `lariat-roce` (queue pairs, connection
//! manager) and the `soft` provider of `lariat-fabric` call it.
//! Specification: InfiniBand Architecture, volume 1 ("IBTA"), chapters 9, 12,
//! 13, and its annexes A11 (RDMA IP CM service) and A17 (RoCEv2).

mod aeth;
mod bth;
pub mod cm;
mod deth;
mod fields;
pub mod icrc;
mod ids;
mod ieth;
mod imm;
mod mad;
mod opcode;
mod packet;
mod reth;

pub use aeth::{Aeth, Credits, NakCode, RnrTimer, Syndrome};
pub use bth::Bth;
pub use deth::Deth;
pub use icrc::{Flow, FlowSeed, FlowV4, FlowV6, IcrcSeed, IdBasis, LengthSeed};
pub use ids::{Msn, PKey, Psn, QKey, Qpn, Rkey};
pub use ieth::Ieth;
pub use imm::Imm;
pub use mad::{CM_MAD_LEN, CM_MAD_MIN_LEN, MadError, MadHeader};
pub use opcode::{Opcode, Position};
pub use packet::{AssembleError, Ext, Headers, ICRC_LEN, MAX_HEADER, Packet, PacketError, pad_for};
pub use reth::Reth;

/// The UDP destination port of RoCEv2 (IBTA A17.3.2).
pub const UDP_PORT: u16 = 4791;
