package quota

import "time"

// Reason is why a need was refused. The values are the error codes of the data plane.
type Reason string

// The reasons a decision can give.
const (
	Admitted          Reason = ""
	InsufficientQuota Reason = "insufficient_quota"  // an account is used up, or can never carry the need
	PaymentRequired   Reason = "payment_required"    // overage used up, or a negative balance
	RateExceeded      Reason = "rate_limit_exceeded" // a bucket or the concurrency limit
)

// Unit is what was counted where a need was refused.
type Unit string

// The units.
const (
	UnitCredits     Unit = "credits"
	UnitRPS         Unit = "rps"
	UnitRPM         Unit = "rpm"
	UnitTPM         Unit = "tpm"
	UnitConcurrency Unit = "concurrency"
)

// Refusal says which limit was short and when to come back. The zero Refusal is an admission.
type Refusal struct {
	Reason     Reason
	Scope      Scope
	Period     Period // of the short account; Ever for buckets and slots
	Unit       Unit
	Need       int64         // what was asked of the short limit
	Limit      int64         // total + overage limit, bucket capacity, or slots
	Remaining  int64         // what it still had, idle credits in leases included; never negative
	RetryAfter time.Duration // 0: do not come back by yourself
	Never      bool          // no waiting helps: the need is above what this limit can ever carry
	Pending    bool          // not final: other nodes still hold idle credits (leased > 0)
}

// Decision is the outcome of one reserve or consume.
type Decision struct {
	Refusal   Refusal
	Duplicate bool           // a repeat of a known id: the recorded outcome
	Reserved  int64          // credits frozen (or charged, for a consume)
	Overage   bool           // after this decision an account is beyond its total
	NowMillis int64          // Redis' time of the decision
	Deadline  int64          // ms; when the hold expires
	Chain     Chain          // the accounts decided on
	States    []AccountState // beside Chain, after the decision
	Buckets   []BucketState  // the rate limits decided on, after the decision
}

// Admitted says whether the need was granted.
func (d *Decision) Admitted() bool { return d.Refusal.Reason == Admitted }

// BucketState is a token bucket as of a decision.
type BucketState struct {
	Scope     Scope
	Unit      Unit
	Limit     Bucket
	Remaining int64 // whole tokens left; may be negative after a correction
	Need      int64 // tokens this decision asked for
}

// SlotState is a scope's concurrency as of a decision; Max < 0 is unlimited.
type SlotState struct {
	Max    int64
	InUse  int64
	Leased int64
}
