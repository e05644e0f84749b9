package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// disk is what the journal asks of the operating system where that may fail in
// ways a test must be able to cause.
type disk struct {
	allocate func(f *os.File, bytes int64) error // blocks for the whole file
	msync    func(mapped []byte) error           // a mapping's range, durably
	fsync    func(f *os.File) error              // a file's data and size, durably
}

func realDisk() disk {
	return disk{
		allocate: allocate,
		msync:    func(mapped []byte) error { return unix.Msync(mapped, unix.MS_SYNC) },
		fsync:    func(f *os.File) error { return f.Sync() },
	}
}

// zeros is what a new segment is written with.
var zeros [1 << 20]byte

// allocate reserves blocks and then writes them. The first alone would leave
// extents that are marked as unwritten: each sync would have to change that
// mark as well, and a full disk could still get in the way of it.
func allocate(f *os.File, bytes int64) error {
	if err := reserveBlocks(f, bytes); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("allocate %d bytes: %w", bytes, err)
	}
	for at := int64(0); at < bytes; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), bytes-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// syncDir makes names in a directory durable.
func (d disk) syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.fsync(f)
	return errors.Join(err, f.Close())
}

// Names in the journal's directory.
const (
	segmentSuffix = ".seg"
	cursorSuffix  = ".cursor"
	newSuffix     = ".new" // not finished; removed at Open
	lockName      = "journal.lock"
	dirName       = "journal"
)

func segmentName(serial uint64) string { return fmt.Sprintf("%012d%s", serial, segmentSuffix) }

func parseSegmentName(name string) (serial uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok {
		return 0, false
	}
	serial, err := strconv.ParseUint(digits, 10, 32)
	return serial, err == nil && segmentName(serial) == name
}

// makeSegment makes a file of a segment with its blocks, durable under its
// name, and maps it. On an error nothing is left but perhaps an unfinished file.
func (d disk) makeSegment(dir string, h head) (*segment, error) {
	path := filepath.Join(dir, segmentName(h.serial))
	f, err := os.OpenFile(path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	s := &segment{head: h, path: path, file: f}
	s.tail.Store(headBytes)
	if err := d.fillSegment(s, dir); err != nil {
		_ = f.Close()
		_ = os.Remove(path + newSuffix)
		return nil, err
	}
	return s, nil
}

func (d disk) fillSegment(s *segment, dir string) error {
	if err := d.allocate(s.file, int64(s.bytes)); err != nil {
		return err
	}
	if _, err := s.file.WriteAt(s.encode(), 0); err != nil {
		return err
	}
	if err := d.fsync(s.file); err != nil {
		return err
	}
	mapped, err := unix.Mmap(int(s.file.Fd()), 0, int(s.bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	if err := populate(mapped); err != nil {
		return errors.Join(fmt.Errorf("map: %w", err), unix.Munmap(mapped))
	}
	if err := os.Rename(s.path+newSuffix, s.path); err != nil {
		return errors.Join(err, unix.Munmap(mapped))
	}
	if err := d.syncDir(dir); err != nil {
		return errors.Join(err, os.Remove(s.path), unix.Munmap(mapped))
	}
	s.data = mapped
	return nil
}

// lockDir takes the data directory for this process; the lock ends with the
// file, so also with the process. The file names the process for the other one's error.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 64))
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is locked by process %q", ErrLocked, path, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("journal: lock %s: %w", path, err)
	}
	// Only for the error text above: a full disk must not keep the node from starting.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return f, nil
}

// freeBytes is what the disk has left for this user.
func freeBytes(dir string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0
	}
	return int64(min(s.Bavail*uint64(s.Bsize), 1<<62))
}
