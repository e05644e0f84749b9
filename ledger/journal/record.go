package journal

import (
	"tollgate/lua"
	"tollgate/quota"
)

// Record is one of *Reserved, *Progress, *Committed, *Released, *Unknown,
// *Checkpoint, *Head.
type Record interface{ kind() kind }

// kind is the first byte of a record. Numbers are never used again for something else.
type kind uint8

const (
	kindReserved   kind = 1
	kindProgress   kind = 2
	kindCommitted  kind = 3
	kindReleased   kind = 4
	kindUnknown    kind = 5
	kindCheckpoint kind = 6
	kindHead       kind = 7
)

// versionNow is the second byte of every record that is written. A higher one is refused.
const versionNow = 1

// Call says whose call it is and what was taken for it: all that settlement
// needs to end its hold, and the part of a usage event that is known at
// admission. Times are ms since 1970, amounts credits.
type Call struct {
	Store           string // name of the store in the configuration
	RequestID       string // names the hold and the event
	ClientRequestID string // the client's label
	Tenant          string
	App             string
	Key             string
	Model           string
	Route           string
	Upstream        string
	Path            string          // direct, leased or degraded
	Chain           quota.Chain     // of the hold; nil when a tab carries the charge
	Buckets         []lua.BucketArg // tpm buckets to correct at the end
	Mark            lua.Mark        // of an Idempotency-Key
	Attempt         string          // names this try
	Fingerprint     string          // of the request's content
	OwnID           bool            // nobody can repeat the id
	Reserved        int64
	Overage         int64  // the part of Reserved above the totals
	PriceID         string // prices used
	Tab             string // full name of the tab; "" when direct
	Deadline        int64
	Created         int64
}

// Outcome is how a call ended: the rest of a usage event.
type Outcome struct {
	Requests          int64 // calls folded into this record; usually 1
	Cost              int64 // credits charged
	Overrun           int64 // the part of Cost above what was reserved
	Late              bool  // its hold had ended before
	Usage             quota.Usage
	Source            quota.Source
	Tokens            int64 // to correct tpm buckets; -1: no correction
	UpstreamRequestID string
	UpstreamStatus    int64
	Error             string // cut at errorBytesMax
	ResponseBytes     int64
	Ended             int64 // ms
}

// Reserved is written before a call goes upstream. It is the one kind that
// ErrFull refuses early, so that what was admitted can always be ended.
type Reserved struct{ Call }

// Progress is what a long stream has delivered so far; totals, not differences.
type Progress struct {
	Tenant    string
	RequestID string
	Usage     quota.Usage // counted here
	TextBytes int64
	Cost      int64 // credits, if it ended now
	At        int64 // ms
}

// Committed is a call that was charged.
type Committed struct {
	Call
	Outcome
	SpentTotal int64 // the tab's, after this charge; 0 without a tab
}

// Released is a call that was not charged; Error says why where there is more to say.
type Released struct {
	Call
	Outcome
}

// Unknown is a reserve or consume whose answer did not come: it is to be
// voided before anything else is believed.
type Unknown struct {
	Call
	Undo bool // take back a consume that ran
}

// TabTotals are the totals of a tab, which only rise.
type TabTotals struct {
	Store   string
	Tenant  string
	App     string
	Key     string
	Tab     string
	Chain   quota.Chain // fixed at its opening
	Granted int64
	Freed   int64
	Spent   int64
}

// Checkpoint is what Redis has acknowledged of a tab.
type Checkpoint struct {
	TabTotals
	Closes int64 // how many closes were acknowledged; 2: it may be forgotten
}

// Head repeats the totals of an open tab, so that recovery does not need
// segments that are gone. See Options.Carry.
type Head struct{ TabTotals }

func (*Reserved) kind() kind   { return kindReserved }
func (*Progress) kind() kind   { return kindProgress }
func (*Committed) kind() kind  { return kindCommitted }
func (*Released) kind() kind   { return kindReleased }
func (*Unknown) kind() kind    { return kindUnknown }
func (*Checkpoint) kind() kind { return kindCheckpoint }
func (*Head) kind() kind       { return kindHead }

// Each kind lists its fields once; the codec measures, writes and reads by the
// same list. A later version adds to the end, behind a test of c.version.

func (r *Reserved) fields(c *codec) { r.Call.fields(c) }

func (r *Progress) fields(c *codec) {
	c.text(&r.Tenant)
	c.text(&r.RequestID)
	c.usage(&r.Usage)
	c.int(&r.TextBytes)
	c.int(&r.Cost)
	c.int(&r.At)
}

func (r *Committed) fields(c *codec) {
	r.Call.fields(c)
	r.Outcome.fields(c)
	c.int(&r.SpentTotal)
}

func (r *Released) fields(c *codec) {
	r.Call.fields(c)
	r.Outcome.fields(c)
}

func (r *Unknown) fields(c *codec) {
	r.Call.fields(c)
	c.bool(&r.Undo)
}

func (r *Checkpoint) fields(c *codec) {
	r.TabTotals.fields(c)
	c.int(&r.Closes)
}

func (r *Head) fields(c *codec) { r.TabTotals.fields(c) }

func (r *Call) fields(c *codec) {
	c.text(&r.Store)
	c.text(&r.RequestID)
	c.text(&r.ClientRequestID)
	c.text(&r.Tenant)
	c.text(&r.App)
	c.text(&r.Key)
	c.text(&r.Model)
	c.text(&r.Route)
	c.text(&r.Upstream)
	c.text(&r.Path)
	c.chain(&r.Chain, quota.Principal{Tenant: r.Tenant, App: r.App, Key: r.Key})
	c.buckets(&r.Buckets)
	c.text(&r.Mark.Name)
	c.duration(&r.Mark.TTL)
	c.text(&r.Attempt)
	c.text(&r.Fingerprint)
	c.bool(&r.OwnID)
	c.int(&r.Reserved)
	c.int(&r.Overage)
	c.text(&r.PriceID)
	c.text(&r.Tab)
	c.int(&r.Deadline)
	c.int(&r.Created)
}

func (r *Outcome) fields(c *codec) {
	c.int(&r.Requests)
	c.int(&r.Cost)
	c.int(&r.Overrun)
	c.bool(&r.Late)
	c.usage(&r.Usage)
	c.text((*string)(&r.Source))
	c.int(&r.Tokens)
	c.text(&r.UpstreamRequestID)
	c.int(&r.UpstreamStatus)
	c.textCut(&r.Error)
	c.int(&r.ResponseBytes)
	c.int(&r.Ended)
}

func (r *TabTotals) fields(c *codec) {
	c.text(&r.Store)
	c.text(&r.Tenant)
	c.text(&r.App)
	c.text(&r.Key)
	c.text(&r.Tab)
	c.chain(&r.Chain, quota.Principal{Tenant: r.Tenant, App: r.App, Key: r.Key})
	c.int(&r.Granted)
	c.int(&r.Freed)
	c.int(&r.Spent)
}
