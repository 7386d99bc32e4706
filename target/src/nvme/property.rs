//! Controller properties: what Property Get and Set do, and the CC/CSTS state machine (NVMe Base
//! 2.1, 3.1.4, 3.5, 3.6). Called by `controller`.

use std::time::Duration;

use lariat_wire::nvme::{
    Capabilities, ControllerConfig, ControllerStatus, Property, PropertySize, ShutdownNotification,
    ShutdownStatus, Status, Version,
};

use super::subsystem::Subsystem;

/// The version of the specification that Identify and VS tell. 1.4 asks for all that we serve; 2.0
/// and later would oblige us to log pages and properties that no host needs.
pub(super) const VERSION: Version = Version::V1_4;

/// Longest time that enabling or disabling may take, as CAP.TO tells it. Both happen at once.
const READY_TIMEOUT: Duration = Duration::from_millis(7500);

/// What a Property Set did to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing that matters elsewhere.
    None,
    /// It is ready now.
    Enabled,
    /// It was reset: I/O queues, held commands and features are to be dropped.
    Reset,
    /// It was shut down: no commands any more until a reset.
    ShutDown,
}

/// The properties of one controller.
#[derive(Debug)]
pub(super) struct Properties {
    cap: Capabilities,
    cc: ControllerConfig,
    csts: ControllerStatus,
    /// A discovery controller has no I/O queues, so the sizes of their entries do not count.
    discovery: bool,
}

impl Properties {
    pub(super) fn new(subsystem: &Subsystem) -> Self {
        Self {
            cap: Capabilities::fabrics(subsystem.limits().max_queue_depth)
                .with_ready_timeout(READY_TIMEOUT),
            cc: ControllerConfig::default(),
            csts: ControllerStatus::default(),
            discovery: subsystem.is_discovery(),
        }
    }

    /// Whether commands other than Fabrics commands are executed.
    pub(super) fn is_ready(&self) -> bool {
        self.cc.enabled() && self.csts.ready() && self.csts.shutdown() == ShutdownStatus::NORMAL
    }

    /// CC.EN.
    pub(super) fn is_enabled(&self) -> bool {
        self.cc.enabled()
    }

    /// Property Get. Offsets that hold nothing here are an invalid field, as is another size than
    /// the property's own.
    pub(super) fn get(&self, size: PropertySize, offset: u32) -> Result<u64, Status> {
        let property = Property(offset);
        let value = match property {
            Property::CAP => self.cap.0,
            Property::VS => u64::from(VERSION.0),
            Property::CC => u64::from(self.cc.0),
            Property::CSTS => u64::from(self.csts.0),
            _ => return Err(Status::INVALID_FIELD.with_dnr()),
        };
        if property.size() != Some(size) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        Ok(value)
    }

    /// Property Set. CC alone can be set.
    pub(super) fn set(
        &mut self,
        size: PropertySize,
        offset: u32,
        value: u64,
    ) -> Result<Change, Status> {
        if Property(offset) != Property::CC || size != PropertySize::Four {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let value = u32::try_from(value).map_err(|_| Status::INVALID_FIELD.with_dnr())?;
        Ok(self.configure(ControllerConfig(value)))
    }

    fn configure(&mut self, new: ControllerConfig) -> Change {
        let old = self.cc;
        self.cc = new;
        let shutdown = new.shutdown() != ShutdownNotification::NONE;
        let mut change = Change::None;
        if old.enabled() && !new.enabled() {
            self.csts = ControllerStatus::default();
            change = Change::Reset;
        } else if !old.enabled() && new.enabled() {
            let usable = self.is_usable(new);
            self.csts = ControllerStatus::default().with_ready(usable).with_fatal(!usable);
            if usable && !shutdown {
                change = Change::Enabled;
            }
        }
        // Nothing that was acknowledged waits here for a shutdown, so it is complete at once.
        if shutdown && self.csts.shutdown() == ShutdownStatus::NORMAL {
            self.csts = self.csts.with_shutdown(ShutdownStatus::COMPLETE);
            if change == Change::None {
                change = Change::ShutDown;
            }
        }
        change
    }

    /// Whether a controller can run so: 4 KiB pages, round robin, the NVM command set, and queue
    /// entries of 64 and 16 bytes.
    fn is_usable(&self, cc: ControllerConfig) -> bool {
        let sizes = cc.sqes() == 6 && cc.cqes() == 4;
        cc.page_bytes() == 4096
            && cc.arbitration() == 0
            && cc.command_set() == 0
            && (sizes || self.discovery)
    }
}
