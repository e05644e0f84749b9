package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"tollgate/quota"
)

// Field is a member of a patch: absent (not Set) leaves what is there, null
// gives the zero Value, which removes a limit.
type Field[T any] struct {
	Set   bool
	Value T
}

// UnmarshalJSON is called only where the member is present.
func (f *Field[T]) UnmarshalJSON(data []byte) error {
	f.Set = true
	var value T // nothing of an earlier duplicate stays
	if err := decodeStrict(data, &value); err != nil {
		return err
	}
	f.Value = value
	return nil
}

// Set makes a Field that sets the value.
func Set[T any](value T) Field[T] { return Field[T]{Set: true, Value: value} }

func (f Field[T]) apply(to *T) {
	if f.Set {
		*to = f.Value
	}
}

// decodeStrict refuses unknown fields and anything after the value.
func decodeStrict(data []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// BudgetPatch changes a scope's limits besides its total. As JSON it is part of
// the patch it stands in.
type BudgetPatch struct {
	Day    Field[*int64]       `json:"day"`
	Month  Field[*int64]       `json:"month"`
	Limits Field[*LimitsPatch] `json:"limits"` // null removes all four
}

// LimitsPatch changes single limits of a scope.
type LimitsPatch struct {
	RPM         Field[*quota.Bucket] `json:"rpm"`
	RPS         Field[*quota.Bucket] `json:"rps"`
	TPM         Field[*quota.Bucket] `json:"tpm"`
	Concurrency Field[*int64]        `json:"concurrency"`
}

func (p BudgetPatch) apply(b *quota.Budget) {
	p.Day.apply(&b.Day)
	p.Month.apply(&b.Month)
	switch l := p.Limits.Value; {
	case !p.Limits.Set:
	case l == nil:
		b.Limits = quota.Limits{}
	default:
		l.RPM.apply(&b.Limits.RPM)
		l.RPS.apply(&b.Limits.RPS)
		l.TPM.apply(&b.Limits.TPM)
		l.Concurrency.apply(&b.Limits.Concurrency)
	}
}

func checkBudget(b quota.Budget) error {
	for _, amount := range []struct {
		field   string
		credits *int64
	}{{"day", b.Day}, {"month", b.Month}} {
		if amount.credits != nil {
			if err := check(amount.field, quota.CheckAmount(*amount.credits)); err != nil {
				return err
			}
		}
	}
	for _, bucket := range []struct {
		field string
		limit *quota.Bucket
	}{{"limits.rpm", b.Limits.RPM}, {"limits.rps", b.Limits.RPS}, {"limits.tpm", b.Limits.TPM}} {
		if l := bucket.limit; l != nil && (min(l.Rate, l.Burst) < 0 || max(l.Rate, l.Burst) > quota.RateMax) {
			return invalid(bucket.field, "rate and burst must be 0 to %d", quota.RateMax)
		}
	}
	return check("limits.concurrency", b.Limits.Validate())
}

// checkTotal accepts quota.Unlimited, and totals that leave room for the overage limit.
func checkTotal(total, overageLimit int64) error {
	if err := check("overage_limit", quota.CheckAmount(overageLimit)); err != nil {
		return err
	}
	if total == quota.Unlimited {
		return nil
	}
	if err := check("total", quota.CheckAmount(total)); err != nil {
		return err
	}
	_, err := quota.Add(total, overageLimit)
	return check("overage_limit", err)
}

// policyBytesMax bounds a tenant's policy object as JSON.
const policyBytesMax = 16 << 10

// mergePolicy lays the members of patch over those of policy; a null member
// removes one. The result is compact, without duplicates, nil when empty.
func mergePolicy(policy, patch json.RawMessage) (json.RawMessage, error) {
	merged := map[string]json.RawMessage{}
	for _, layer := range []json.RawMessage{policy, patch} {
		var members map[string]json.RawMessage
		if len(layer) == 0 {
			continue
		}
		if err := json.Unmarshal(layer, &members); err != nil {
			return nil, invalid("policy", "must be a JSON object")
		}
		for name, value := range members {
			if string(value) == "null" {
				delete(merged, name)
			} else {
				merged[name] = value
			}
		}
	}
	if len(merged) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(merged)
	if err == nil && len(data) > policyBytesMax {
		err = invalid("policy", "longer than %d bytes", policyBytesMax)
	}
	return data, err
}

func (db *DB) checkPolicy(policy json.RawMessage) error {
	if db.opt.CheckPolicy == nil || len(policy) == 0 {
		return nil
	}
	return check("policy", db.opt.CheckPolicy(policy))
}
