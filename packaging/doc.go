// Package packaging has no code of its own: its tests try what the directories
// beside it offer to operators. A unit, an image, an action, manifests, a
// dashboard and alerts are read as their users' tools read them, and their
// commands are run as far as a machine without those tools allows.
package packaging
