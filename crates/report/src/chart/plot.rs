//! `Plot`: the rectangle of the canvas that data is drawn in, and where values lie in it.

use crate::axis::Axis;
use crate::canvas::Place;

/// Where the plot lies on the canvas.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// Left side.
    pub left: f64,
    /// Right side.
    pub right: f64,
    /// Upper side.
    pub top: f64,
    /// Lower side.
    pub bottom: f64,
}

impl Plot {
    /// Pixels from the left of the canvas to a value.
    pub fn x(&self, axis: &Axis, value: f64) -> f64 {
        self.left + axis.place(value) * (self.right - self.left)
    }

    /// Pixels from the top of the canvas to a value.
    pub fn y(&self, axis: &Axis, value: f64) -> f64 {
        let place = axis.place(value).clamp(-0.02, 1.02);
        self.bottom - place * (self.bottom - self.top)
    }

    /// Where a point lies on the canvas.
    pub fn place(&self, x: &Axis, y: &Axis, at: (f64, f64)) -> Place {
        (self.x(x, at.0), self.y(y, at.1))
    }
}
