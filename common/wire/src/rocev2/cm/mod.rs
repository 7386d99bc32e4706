//! Messages of the connection manager (in the making).
