package main

import (
	"context"
	"errors"

	"tollgate/edge/identity"
	"tollgate/ledger"
	"tollgate/lua"
	"tollgate/quota"
)

// source lets the directory of keys read the ledger.
type source struct{ db *ledger.DB }

// LoadSecret implements identity.Source.
func (s source) LoadSecret(ctx context.Context, hash string) (lua.SecretDoc, int64, error) {
	secret, err := s.db.LoadSecret(ctx, hash)
	return secret.Doc, secret.Version, notFound(err)
}

// LoadDocs implements identity.Source.
func (s source) LoadDocs(ctx context.Context, who quota.Principal) (identity.Docs, error) {
	d, err := s.db.LoadDocs(ctx, who)
	return identity.Docs(d), notFound(err)
}

func notFound(err error) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return identity.ErrNotFound
	}
	return err
}
