// Package journal is the node's log on its own disk: what was admitted, what it
// cost, and what Redis is still to be told, so that nothing that was answered is
// lost when the process dies.
//
// # The invariant
//
// A record whose Append returned is found by the next Open, exactly once, after
// any death of the process; after a loss of power, if WaitSynced returned. No
// record is ever skipped in favour of a later one, and nothing is read as a
// record that was not appended as one.
//
// # Why an answered append survives kill -9
//
// Segments are files that are mapped shared, so a store into one belongs to the
// kernel as soon as it is done; death takes back none of them. What could lose a
// record is only a hole before it: space taken by an appender that died before
// it wrote anything, behind which recovery would not know where to go on.
//
// Therefore space is not taken from a counter in memory. It is taken by one
// compare-and-swap of the 8-byte word that begins the record, in the file, from
// zero to "reserved, n bytes". Taking the space and writing down its length are
// the same instruction, so there is no state in which the one has happened
// without the other, and the words form a chain: nobody reaches offset b behind
// a without having read a nonzero word at a. (The tail kept in memory is a hint
// that saves the walk.) Then the payload is copied, and one store replaces the
// word by "published, n bytes, checksum"; Append returns after that store.
//
// So after a death every word of the chain up to the last taken space is there,
// and each is one of two: published, then its payload was complete before; or
// reserved, then its Append has not returned, nobody was answered because of it,
// and its length says where the next one is. Reserved words carry a checksum as
// well, so that a flipped bit does not pass for one. Appenders may finish in any
// order; what readers and the disk are given is the prefix in which all are
// published.
//
// A segment ends by a word of its own, put there by the same compare-and-swap
// before any appender goes to the next file: a record in segment n+1 implies the
// end of segment n.
//
// # What recovery does with damage
//
// Each segment's head says up to where it was synced. A bad record beyond that
// is a torn tail, which only a loss of power makes: it is cut off at the last
// good record and reported. A bad record before it, a missing segment, a cursor
// that points to nothing, are damage: Open refuses and names file and offset.
// Records and segments of a newer version are refused as well, not skipped.
// A recovered segment is never appended to; each Open begins a new segment, and
// with it a new epoch.
//
// # Disk
//
// Segments are made ahead of need, with their blocks allocated and written, so
// that a store cannot meet a full disk. Where a file system lies about that
// (copy-on-write, compression, network), a store may fault; Append turns that
// into ErrBroken instead of the death of the process. After a failed sync
// nothing is known about the pages concerned, and asking again would only clear
// the error: the journal is broken until the process is started anew, and
// recovery then writes everything beyond the last good sync again before it
// trusts it.
//
// Only ledger (settlement, events) and the parts above it use the package. The
// format is told in docs/journal.md.
package journal
