package lua

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"tollgate/quota"
)

// AccountReply is the answer to a load or an adjustment.
type AccountReply struct {
	Outcome   Outcome // Done, Repeat, NeedLoad, Below, NoTotal, TooLarge
	NowMillis int64
	States    []quota.AccountState
}

// Load brings accounts that Redis does not hold and answers all of the chain.
// NeedLoad: the values are stale, read them again.
func (s *Store) Load(ctx context.Context, tenant string, chain quota.Chain, loads *Loads) (AccountReply, error) {
	return s.account(ctx, tenant, chain, loads, "load", 0, 0, "")
}

// Adjust applies adjustment number of one `ever` account, once; the account is
// loaded by the same call if need be. force allows a cut below prepaid + spent.
func (s *Store) Adjust(ctx context.Context, tenant string, account quota.Account, loads *Loads, number, delta int64, force bool) (AccountReply, error) {
	word := ""
	if force {
		word = "force"
	}
	return s.account(ctx, tenant, quota.Chain{account}, loads, "adjust", number, delta, word)
}

func (s *Store) account(ctx context.Context, tenant string, chain quota.Chain, loads *Loads, op string, number, delta int64, force string) (AccountReply, error) {
	org := AccountKey(tenant, quota.Account{Scope: quota.Org, ID: tenant})
	keys := []string{ConfKey(tenant), org}
	args := []string{itoa(len(chain)), randomGen(), loadVersion(loads), op, itoa64(number), itoa64(delta), force}
	for i, a := range chain {
		keys = append(keys, AccountKey(tenant, a))
		load := ""
		if loads != nil {
			load = loads.Accounts[i].text()
		}
		args = append(args, load)
	}
	r, err := s.run(ctx, accountScript, keys, args)
	if err != nil {
		return AccountReply{}, err
	}
	out := AccountReply{Outcome: Outcome(r.text()), NowMillis: r.int()}
	s.sawTime(out.NowMillis)
	out.States, _ = r.accounts(r.count(len(chain)))
	return out, r.err(accountScript)
}

// ReadAccounts reads accounts without loading; an absent one is nil.
func (s *Store) ReadAccounts(ctx context.Context, tenant string, chain quota.Chain) ([]*quota.AccountState, error) {
	out := make([]*quota.AccountState, len(chain))
	commands := make([]rueidis.Completed, len(chain))
	for i, a := range chain {
		commands[i] = s.decide.B().Hmget().Key(AccountKey(tenant, a)).
			Field("total", "overage_limit", "spent", "prepaid", "leased").Build()
	}
	results, err := s.doMulti(ctx, "read_accounts", commands)
	if err != nil {
		return nil, err
	}
	for i := range results {
		list, err := results[i].ToArray()
		if err != nil || len(list) != 5 {
			return nil, fmt.Errorf("%w: account", ErrReply)
		}
		var n [5]int64
		present := true
		for j := range list {
			v, err := list[j].AsInt64()
			present = present && err == nil
			n[j] = v
		}
		if present {
			out[i] = &quota.AccountState{Total: n[0], OverageLimit: n[1], Spent: n[2], Prepaid: n[3], Leased: n[4]}
		}
	}
	return out, nil
}

// PublishConf writes one document of a tenant ("tenant", "app:<id>" or
// "key:<id>") unless Redis has its version or a newer one, and with it the
// limits it sets. Old says that nothing was written.
func (s *Store) PublishConf(ctx context.Context, tenant, field string, version int64, doc []byte, limits []AccountLimit) (Outcome, error) {
	keys := []string{ConfKey(tenant)}
	args := []string{field, itoa64(version), string(doc)}
	for _, l := range limits {
		keys = append(keys, AccountKey(tenant, l.Account))
		args = append(args, optional(l.Total), optional(l.OverageLimit), optional(l.MaxInflight))
	}
	return s.publish(ctx, keys, args)
}

// PublishSecret writes the document of one API key secret, by its hash.
func (s *Store) PublishSecret(ctx context.Context, hash string, version int64, doc []byte) (Outcome, error) {
	return s.publish(ctx, []string{SecretKey(hash)}, []string{"doc", itoa64(version), string(doc)})
}

func (s *Store) publish(ctx context.Context, keys, args []string) (Outcome, error) {
	r, err := s.run(ctx, publishScript, keys, args)
	if err != nil {
		return "", err
	}
	outcome := Outcome(r.text())
	s.sawTime(r.int())
	return outcome, r.err(publishScript)
}

func optional(n *int64) string {
	if n == nil {
		return ""
	}
	return itoa64(*n)
}
